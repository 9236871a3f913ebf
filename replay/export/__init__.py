"""Copies a log, or a part of it, into a file.

export      archives, with the apps' reports beside the log, or rows for analysis
sink        the writers' interface;  tables: rows
selection   chooses the part
anonymize   a log under pseudonyms that replays as the original does;  pseudonyms, disguise: names, field by field
"""
