"""The master: a shell around the core that follows the log and publishes decisions.

    master             the loop: follow, lead, decide, publish
    lease              which master may lead, and a thread that renews the lease for a busy loop
    computing          allocations outside the loop, each with a time limit
    failure_detector   which nodes are silent, when silence is meaningful
    log_time           the time that decisions use
    sealing            the master's key, when a seal is due, and whether the log is still the one that was read before
    parts              what each node's agent follows, stored next to the log

Start with `master`.
"""
