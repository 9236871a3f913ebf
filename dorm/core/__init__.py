"""The functional core: `evolve(state, record)` folds the log, `decide(state, now)` says what follows.

Live master, replay, what-if and simulator run this same code, so it performs nothing: it reads no clock (`now` is an
argument), draws no randomness, does no I/O and iterates no set.  CI checks its imports.
"""
