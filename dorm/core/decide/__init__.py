"""Decisions: the facts of the master's next round, and when a round is due.

    next_round   answers, ends, failures and releases at once; an allocation when asked for one
    allocation   from a state to a problem for the policy, and from its answer to a decision
    liveness     what a node's silence means
    quiet        when the log has been quiet for long enough
    timing       when something is due without any further record

Start with `next_round`.  Imports `dorm.core.apps`, the state and `dorm.policies`.
"""
