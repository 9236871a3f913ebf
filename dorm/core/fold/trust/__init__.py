"""Whose records count: who is known to the cluster, and what each author may publish about what.

authority    what an author may say
identities   the events about users, nodes and tokens, and records that are refused

A log that names no identities is folded as if this package were not there.  Imports the state, the kinds and
`events.identities`; `dorm.core.fold.evolve` asks it before each record.  Start with `authority`.
"""
