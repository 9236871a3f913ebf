"""Whose records count: what each author may publish about what.

    authority    what an author may publish

A log that names no identities is folded as if this package were not there.  Who is known is in `dorm.core.identities`.
"""
