"""Server-sent events: bounded, resumed exactly by `Last-Event-ID`.

    sse      one stream: its frames, what waits for its reader, and how it ends
    events   the log's events, filtered; start here
    view     changes of the view

What many readers want is encoded once and written to all of them.  A reader that does not keep up is ended, and resumes: the
log is one order, so the id of the last event that it has seen says all that is needed.
"""
