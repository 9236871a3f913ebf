"""Rotation: the log's sealed past moves into archives, and the stream continues from a signed snapshot.

    policy    when a rotation is due, and what of the log it may move; pure
    planning  the same for an actual log: up to which seal the next archive reaches
    writing   one archive: records, snapshots, and the hash chain over them
    rotator   the steps of a rotation, each repeatable after a crash
    service   the task next to a master that rotates when it is due or requested, and reports the outcome
    beside    runs the service next to a master, with its operator's settings

Start with `rotator`.  `events.archive.whole` reads archives and stream as one log.
"""
