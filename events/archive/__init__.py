"""Logs in files: archives, which are written once and read as any log is.

    opening    `open_archive`: an archive of any release, from a file or from standard input
    segments   the format that `dorm replay export` writes: compressed blocks, snapshots, an index at its end
    blocks     the bytes of a block; `index` finds them
    whole      a rotated log as one: its past in archives, its present in a stream
    stores/    where the archives of a rotated log are stored: a folder, an S3-compatible store
    legacy     the format of releases 0.1 and 0.2, for reading
    beside     progress beside an archive of a log
    damage     the damage of an archive, and which part of it remains usable
    files      regular files as descriptors, and their errors

Start with `opening`, then `segments`.  Imports the vocabulary and `events.log`.
"""
