"""A virtual cluster in one process, of which one seed is one history; begin with `world`.

world    the log, the faults, what is held true as it goes and in the end
master   a master around the real core
node     a toy engine, and an agent around the real `Desired` and `reconcile`
live     live apps, which follow their announcements
people   clients and operators
"""
