"""Rotation: the log's sealed past moves into archives, and the stream continues from a signed snapshot.

    policy    when a rotation is due, and what of the log it may move; pure
    planning  the same for a log as it is: up to which seal the next archive reaches
    writing   one archive: records, snapshots, and the hash chain over them
    rotator   the steps of a rotation, each repeatable after a crash
    service   the task beside a master that rotates when it is due or requested, and reports what became of it
    beside    puts the service beside a master, with what its operator says

Start with `rotator`.  `events.archive.whole` reads archives and stream as one log.
"""
