"""The fold: `evolve(state, record)` advances the state by one record, in place.

    evolve    records of clients, operators and agents
    rounds    the master's rounds, fact by fact
    membership   live adjustments: a generation continues with other members
    batches   the noise that apps report, and their batch sizes
    operating   drains, forgotten nodes, a pause of scheduling, kills, retries ahead of time
    steering/   edits and restarts
    progress  what apps report: progress, checkpoints, and what size they ask for
    trust/    whose records count: what an author may publish, which identities are known
    reasons   why each app waits, as a decision or the limit of its group states it
    shared_folder   which checkpoint folder is the cluster's
    planning    what a policy that plans ahead has promised
    preparing   what nodes prepare ahead of a restart
    log_clock   how the log's time follows its clock when that jumps
    delays      what nodes do for containers again and again
    policies    whether the policy works, and which plug-ins the leading master has

Start with `evolve`.  Imports `dorm.core.apps` and the state.
"""
