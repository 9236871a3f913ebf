"""The fold: `evolve(state, record)` advances the state by one record, in place.

    evolve    records of clients, operators and agents
    rounds    the master's rounds, fact by fact
    membership   live adjustments: a generation continues with other members
    operating   drains, forgotten nodes, a pause of scheduling, kills, retries ahead of time
    progress  what apps report: progress, checkpoints, and what size they ask for
    trust/    whose records count: what an author may publish, which identities are known
    reasons   why each app waits, as a decision or the limit of its group states it
    policies    whether the policy works, and which plug-ins the leading master has

Start with `evolve`.  Imports `dorm.core.apps` and the state.
"""
