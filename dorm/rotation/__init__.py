"""Rotation: the log's sealed past moves into archives, and the stream continues from a signed snapshot.

    rotation_due  when a rotation is due, what of the log it may move, and up to which seal the next archive reaches
    rotator       the steps of a rotation, each repeatable after a crash, and the archive that it writes
    service       the task next to a master that rotates when it is due or requested, and reports the outcome

A package of its own because only masters that keep archives run it, and nothing below it knows of it.

Start with `rotator`.  `events.archive.whole` reads archives and stream as one log.
"""
