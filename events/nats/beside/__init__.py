"""What a cluster keeps beside its log, each in a stream of its own, and what it answers instead of one.

    snapshots   copies of the state
    progress    what apps report between two marks
    parts       what each node's agent follows
    files       the folders that clients ship for their apps
    shadows     the comparisons of `dorm shadow`
    viewed      the log as a plain user has it: a view that somebody serves;  viewed_progress: the progress of its apps

Imports `link`, `reader`, `bus` and `settings` of `events.nats`; `streams` creates what is configured here.
"""
