"""Long lists in pages, each of one moment.

event_pages  events, with the progress beside the log.  Start here
both         the log as far as it is folded, with that progress
pasts        apps of the past as rows, each span folded once
"""
