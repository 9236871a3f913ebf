"""A virtual cluster in one process; one seed is one history.  Start with `world`.

world    the log, the faults, the invariants during a history and at its end
master   a master around the real core
node     a toy engine, and an agent around the real `Desired` and `reconcile`
live     live apps, which follow their announcements
people   clients and operators
"""
