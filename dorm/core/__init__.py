"""The functional core: the fold of the log, and what follows from its state.

The state:

    state             apps, generations, nodes and settings at one sequence; start here
    app               one app in it, with its gates and revisions
    generation        one partition of an app, and who joins and leaves it
    settings          the settings after a `PolicyChanged`
    invariants        what holds in every state
    snapshot          a state as bytes
    round_size        what fits into one message

Concepts, each with its rules, its fold, its part of decisions and its words:

    folded            the outcome of a record, and observers
    effects           consequences of a fact beyond itself: void plans, dropped apps
    containers        how containers end, and what the work of a generation shows
    submissions       requests that wait for an answer, and what they name
    admission         which submissions may run
    revisions         edits and restarts of apps
    gates             why an app may not run at all: holds, times, other apps, the limit of its group
    deadlines         how long an app may take to start, to show work, and in all
    sizes             how many containers an app may have, given its past and its own requests
    resizable         apps that are not resized: those without a checkpoint, and those that forbid it
    costs             what adjusting an app costs and how fast it works, as measured
    offers            which nodes offer what an app needs beyond resources
    claims            reservations of apps that pause after a failure or were interrupted
    failures          why a generation failed, and the consequences
    faults            whose fault that is: pairs that are avoided, and suspect nodes
    live              live adjustments: a generation continues with other members
    batches           batch sizes: the noise that apps report, and what a decision gives them
    delays            what nodes do for containers again and again
    preparing         what nodes prepare ahead of a restart
    promises          what a policy that plans ahead has promised
    shared_folder     which checkpoint folder is the cluster's
    log_clock         log time, and how it follows the server's clock when that jumps
    operating         drains, forgotten nodes, a pause of scheduling, kills, retries ahead of time
    progress          what apps report: progress, checkpoints, and what size they ask for
    policy_in_force   whether the policy works, the guard of its answers, and plug-ins
    identities        who is known, and records that are refused
    authority         which records an author may publish
    changed           which apps and nodes a record changed

The fold and the decisions, which put them together:

    rounds            the fold of the master's rounds, fact by fact
    evolve            the fold: `evolve(state, record)` brings the state one record further
    asking            from a state to the policy's question, and reasons in words
    placement         from the policy's answer to slots and ports
    allocation        a new allocation as a decision
    next_round        `decide(state, now)`: answers, ends, failures and releases at once; an allocation on request
    timing            when something is due without a further record: quiet, silence, ends of waits
    leader            what a leading master does and when: the state machine that every shell drives

Packages:

    parts/            what each node needs to know of a state: its part
    query/            questions about a state: views, standings, plans, which events concern whom

A concept imports the state, `effects` and concepts below it; the fold and the decisions import concepts, and no concept
imports them.  Live master, replay, what-if and simulator run this same code: it performs nothing, reads no clock (`now`
is an argument), draws no randomness, does no I/O and iterates no set.  It imports `events` and `dorm.policies`; CI checks
all of that.
"""
