"""The master: a shell around the core that follows the log and publishes decisions.

    master             the loop: follow, lead, decide, publish
    lease              who should lead
    failure_detector   which nodes are silent, as far as silence means anything
    log_time           the time that decisions go by
    integrity          whether the log is still the one that was seen
    refusals           what follows when the log refuses a round
    sealing            the master's key, and when a seal is due
    snapshots          where to start, and when to take a snapshot

Start with `master`.
"""
