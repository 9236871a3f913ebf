"""What another policy would do on a log, decision by decision, next to the master that really decides.

    hypothetical  the allocation that a policy would have given, carried on from decision to decision
    comparing     what differs between that and the log: `Comparison`
    following     a log read for it, live or recorded

A shadow only reads.  It has no way to append to a log, to take a lease or to publish a heartbeat; its caller decides where
the comparisons go (`events.nats.stores`).  Start with `hypothetical`.
"""
