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

    folded            the outcome of a record, what it touched, and observers
    effects           consequences of a fact beyond itself: void plans, dropped apps
    joins             how a machine joins under a node's name, and leaves
    containers        how containers start and end, and what the work of a generation shows
    submissions       requests that wait for an answer, and what they name
    admission         which submissions may run
    revisions         updates, edits and restarts of apps
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
    operating         drains, forgotten nodes, a pause of scheduling, cancels, kills, retries ahead of time
    progress          what apps report: progress, checkpoints, and what size they ask for
    notes             what people note about apps, for each other
    policy_in_force   changes of settings, whether the policy works, the guard of its answers, and plug-ins
    identities        who is known, and records that are refused
    authority         which records an author may publish
    unread            records of unknown kinds, and those that cannot be read

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

`dorm.core.leader` implements leading without I/O, in the style of etcd's raft library. Records, time and computed
allocations go in; a round to publish, an allocation to compute, nodes to query and the next wake-up come out. The
master, the simulator, plans, the tests' virtual masters and the benchmarks all drive it.

1. Follow the log; `evolve` each record into the state, in place. A gap in sequences is never folded over.
2. `decide` returns what follows immediately: answers to submissions, ends, failures, releases.
3. When the log has been quiet for a moment (`quiet_ms`, at most `quiet_limit_ms`), the policy computes a new
   allocation, which `allocation` turns into slots and ports. The decision (`Resized`) holds its basis, the
   policy with its parameters and version, the figures, each app's reason, and a digest of the state on which it is
   based.
4. The round is published. The fold marks a change void if a record between the decision's basis and its round conflicts
   with it, and the next round places the app again.

A round fits into 1 MiB; what does not fit comes with the next one (`dorm.core.round_size`). Some rounds are due without
a record: retries, deadlines, and idle ticks, which use capacity that θ2 left free. Their times follow from the state
alone (`dorm.core.timing`), so a new master continues them and an audit considers the same moments. Settings are events
as well, and `events.times` refuses harmful ones.

`evolve` returns what the fold of a record did: its event, its outcome (applied, ignored, forbidden, refused, void, unknown or
unreadable), and the apps and nodes that it touched (`dorm.core.folded`). Explanations, stories, timelines and measures are
`Observer`s of a fold.

Several masters. One leads; the others follow: they fold the log and publish nothing. A lease in a KV bucket says who
should lead; the expected sequence of each round protects the log. No clocks are compared (`dorm.master.lease`). Silence
of a node counts only while the master could have heard it (`failure_detector`), decisions use log time (`log_time`),
and a master does not lead a log that differs from what was seen of it (`integrity`). Masters and agents wait for a log
that does not answer; commands fail with an error instead.

Neighbors. A crash loop must not restart other apps again and again. Rules about apps that failed, were interrupted, or
were just resized (`dorm.core.sizes`, `claims`) shape the problem that a policy gets, so policies know none of them.

Gates (a hold, `start_after`, `after`) remove an app from the problem until they open; the next decision stops one that
runs (`dorm.core.gates`). Size requests of an app act as an additional n_max, and batch sizes come from policies that
use goodput.
"""
