"""The functional core: the fold of the log, and what follows from its state.

    state        apps, generations, nodes and settings at one sequence
    app          one app in it
    generation   one partition of an app, and who joins and leaves it
    gates        what keeps an app from running
    revisions    the edits and restarts of an app
    fold/        `evolve(state, record)` brings the state one record further
    apps/        rules about one app: admission, bounds, failures, deadlines, costs
    decide/      `decide(state, now)` gives the facts of the next round; when it is due
    leader       what a leading master does and when: the state machine that every shell drives
    parts/       what each node needs to know of a state: its part
    query/       questions about a state: views, standings, plans, which events concern whom
    settings     the settings after a `PolicyChanged`
    round_size   what fits into one message
    invariants   what holds in every state
    snapshot     a state as bytes
    changed      which apps and nodes a record changed

Start with `state`, then `fold.evolve`, `decide.next_round` and `leader`.  Live master, replay, what-if and simulator run
this same code: it performs nothing, reads no clock (`now` is an argument), draws no randomness, does no I/O and iterates
no set.  It imports `events` and `dorm.policies`; CI checks that.
"""
