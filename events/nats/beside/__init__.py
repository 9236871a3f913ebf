"""Data that a cluster keeps beside its log, each kind in its own stream, and views that it serves instead of the log.

    snapshots   copies of the state
    progress    what apps report between two marks
    parts       what each node's agent follows
    files       the folders that clients ship for their apps
    shadows     the comparisons of `dorm shadow`
    viewed      the log as a plain user sees it: a view that another process serves;  viewed_progress: the progress of its apps

Imports `link`, `reader`, `bus` and `settings` of `events.nats`; `streams` creates what is configured here.
"""
