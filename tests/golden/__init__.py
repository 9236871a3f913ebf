"""Logs that stay readable: one of each release, in the format that it exported (since 0.3), and incidents under pseudonyms.

    python -m tests.golden made              print this build's digests of all of them
    python -m tests.golden release VERSION   add the log of a release: run it once, on the commit that is released
    python -m tests.golden incident          play `incident` with real parts, and keep it under pseudonyms
    python -m tests.golden rewrite           record this build's digests of all of them (`made.json`)

The logs of 0.1 and 0.2 are converted (`docs/tools/convert_legacy_archive.py`); the originals are in `legacy`.

A release's log is never rewritten: logs on a cluster's disks cannot be rewritten either.  If a later build can't
read one, an upcaster is missing in `events.codec`.  If it folds to another state, raise `SCHEMA` in `dorm.core.state`; commit
rewritten digests only if you understand the cause.
"""
