"""The master: a shell around the core that follows the log and publishes decisions.

    master             the loop: follow, lead, decide, publish
    lease              which master may lead
    stand_in           a thread that renews the lease for a busy loop
    computing          allocations outside the loop, each with a time limit
    failure_detector   which nodes are silent, when silence is meaningful
    log_time           the time that decisions use
    integrity          whether the log is still the one that was read before
    refusals           how the master backs off when the log refuses a round
    sealing            the master's key, and when a seal is due
    parts              what each node's agent follows, stored beside the log
    errors             the errors that a master raises

Start with `master`.
"""
