"""Dorm shares one cluster among many distributed machine-learning applications.

Each app gets a *partition* of its own, a set of containers over several nodes, and all partitions are resized while the
apps run (Sun, Wen, Ta, Yan: "Towards Distributed Machine Learning in Shared Clusters: A Dynamically-Partitioned
Approach", arXiv 1704.06738).  This package holds the deciding side:

    dorm.core     pure: state, evolve, decide, shares, policies, invariants, views; no I/O, no clock, no randomness
    dorm.master   follows the log, folds it, publishes decisions
                  (leading: its lease; hearing: who is silent; logtime: what time it is; integrity: is it the same log)
    dorm.sealing  the master's key, and when it seals the log with it
    dorm.client   what a user's program calls: submit, cancel, watch
    dorm.tail     events in their order, filtered, from any position on
    dorm.embedded a NATS server of our own
    dorm.engines  which runtime a cluster on this machine uses
    dorm.local    a whole cluster on this machine, put together from its real parts
    dorm.bench    measurements, all in one form
    dorm.cli      the command line over all of them

The vocabulary and the log are in `events`, the nodes' side in `agents`, time travel and audit in `replay`.
"""
