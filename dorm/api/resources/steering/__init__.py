"""Another spec for an app that exists, and its restart.

specs      the current spec, with its tag, and replacing it.  Start here
trying     what an edit would do, before it is made
restarts   start it again
"""
