"""A log, or a part of it, copied into a file.

export      archives, or rows for analysis;  sink: what takes records;  tables: rows
selection   which part;  frames: snapshots for an archive
anonymize   a log under pseudonyms that replays as the original does;  pseudonyms, disguise: names, field by field
"""
