"""Decisions: the facts of the master's next round, and when a round is due.

    next_round   answers, ends, failures and releases at once; an allocation on request
    allocation   a new allocation as a decision
    asking       from a state to the policy's question, and reasons in words
    keeping      apps that are not resized, unless others need their room
    weighing     what an app's weight counts for
    guarding     the policy, whose answers are checked
    placement    from the policy's answer to slots and ports
    live         what follows for apps that are resized while they run
    liveness     consequences of a node's silence
    quiet        when the log has been quiet for long enough
    timing       when something is due without a further record

Start with `next_round`.  Imports `dorm.core.apps`, the state and `dorm.policies`.
"""
