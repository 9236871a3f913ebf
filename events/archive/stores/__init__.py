"""Where the archives of a rotated log are stored: a folder, or a bucket of an S3-compatible store.

    interface   `ArchiveStore`, and the names of archives in it
    folder      a folder: written aside, synced, linked into place
    s3          a bucket, by obstore (the extra `s3`)
    opening     the store of a place, as people name it

Start with `interface`.  Imports the vocabulary and `events.log`.
"""
