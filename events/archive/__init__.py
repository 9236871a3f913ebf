"""Logs in files: archives, which are written once and read as any log is.

    segments   the format that `dorm replay export` writes: compressed blocks, snapshots, an index at its end; `open_archive`
    blocks     the bytes of a block, and how the blocks of a file are found
    whole      a rotated log as one: its past in archives, its present in a stream
    stores     where the archives of a rotated log are stored: a folder, an S3-compatible store (`s3`);  place: which one
    progress   progress next to an archive of a log
    damage     the damage of an archive, and which part of it remains usable
    files      regular files as descriptors, and their errors

Start with `segments`.  Imports the vocabulary and `events.log`.
"""
