"""Copies a log, or a part of it, into a file.

export      archives, or rows for analysis;  sink: the writers' interface;  tables: rows
progress    the apps' reports beside the log, next to an archive
selection   chooses the part;  frames: snapshots for an archive
anonymize   a log under pseudonyms that replays as the original does;  pseudonyms, disguise: names, field by field
"""
