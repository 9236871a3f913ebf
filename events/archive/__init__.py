"""Logs in files.

    segments     an exported archive: compressed blocks, snapshots, an index at its end
    blocks       the bytes of a block; `index` finds them
    damage       what is wrong with an archive, and which part of it remains usable
    appendable   the first format, one record after the other in a growing file; `open_archive` opens either format

Start with `segments`.  Imports the vocabulary and `events.log`.
"""
