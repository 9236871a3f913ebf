"""Reading the log backwards in time: state at any sequence, audit of decisions, export and import of archives.

Everything here works on any `events.log.EventLog`: a live cluster and an exported file alike.
"""
