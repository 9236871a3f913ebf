"""A policy's input and output: the paper's allocation problem, free of logs, masters and simulators.

A policy is a pure function from (nodes, apps with their current placement) to a placement.  Any program may call one:

    allocation = policy("dorm").allocate(Problem(nodes=…, apps=…), params)

Everything here is an integer in base units (milli-cores, bytes, whole devices, counts); weights and shares are floats.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from events.errors import DormError


class PolicyFailure(DormError):
    """A policy gave no usable answer; the text gives the reason, and the code its kind:

    `policy.raised`         it raised an exception
    `policy.nonsense`       its answer has wrong types, or other ids than the problem
    `policy.infeasible`     its answer breaks a rule (`dorm.policies.checking`)
    `policy.too_slow`       it took longer than it may; depends on the machine
    `policy.ended`          its process ended; depends on the machine
    `policy.not_installed`  it is not installed here, or cannot be loaded"""

    code = "policy.raised"


class PortRoom(msgspec.Struct, frozen=True):
    """A node's range of ports, and how many containers of all apps together it can serve.

    It limits placements but is not a resource that users pay for: neither utilization nor shares count it."""

    first: int
    last: int
    most: int


class NodeRoom(msgspec.Struct, frozen=True):
    """A node and its total resources (not what is free now)."""

    id: str
    capacity: dict[str, int]
    labels: dict[str, str] = {}
    drained: bool = False
    """It gets nothing new, and its containers have to leave. The problem includes it so that reasons can name it."""
    ports: PortRoom | None = None
    """None if ports are not limited."""
    unmounted: bool = False
    """It counts as drained because the cluster's checkpoint folder is not mounted there."""

    @property
    def type(self) -> str:
        """Nodes of one type are equally fast: the value of the label `type`; "" if there is none."""
        return self.labels.get("type", "")


class Batch(msgspec.Struct, frozen=True):
    """The batch sizes that an app accepts, in samples of one step over all its containers, and the noise of its gradients.

    The statistical efficiency of a batch of m samples, against one of `initial` samples, is
    (noise + initial) / (noise + m): larger batches are processed faster, but each sample teaches less (Pollux, OSDI 2021,
    §3.1).  A policy that knows this may choose the batch size in addition to the number of containers."""

    initial: int
    """The batch size that its owner asked for."""
    least: int
    most: int
    per_container: int
    """The most that the memory of one container holds."""
    noise: float
    """The gradient noise scale in samples, as it was reported last: tr(Σ) / |G|² (McCandlish et al., arXiv 1812.06162)."""


class Utility(msgspec.Struct, frozen=True):
    """The worth of completing an app `t` seconds after its submission: worth / (1 + exp(decay · (t - target_s)))
    (OASiS, arXiv 1801.00936, §V; Huang et al., "Need for speed", ICDCS 2015)."""

    worth: float
    """Priority; the utility of an app that is done at once, almost."""
    decay: float
    """Per second: 0 for an app without time pressure, large for an app that is useless after its target."""
    target_s: float


class Slot(msgspec.Struct, frozen=True):
    """One slot of a plan: from `at_s` (seconds on the clock of `Problem.at_s`) the app has these containers by node."""

    at_s: float
    counts: dict[str, int]


class Measured(msgspec.Struct, frozen=True):
    """How fast an app worked with one partition."""

    containers: int
    steps_per_s: float
    seconds: float
    """Seconds for which it was measured."""
    nodes: int = 1
    """Number of nodes of its containers."""
    type: str = ""
    """The type of these nodes (`NodeRoom.type`)."""


class Plan(msgspec.Struct, frozen=True):
    """The promise of a policy that plans ahead to an app."""

    slots: tuple[Slot, ...]
    """Ascending by time; the last has no containers: the app should be done then.  Empty for a plan that is withdrawn."""
    worth: float = 0.0
    """The worth of completing the app by then (`Utility`)."""
    cost: float = 0.0
    """The cost of its resources, by the prices at which it was admitted."""


class AppDemand(msgspec.Struct, frozen=True):
    """An app as the optimizer sees it: the numbers of the paper's 6-tuple, and where its containers are now."""

    id: str
    demand: dict[str, int]
    """Resources of one container (d_i)."""
    weight: float
    n_min: int
    n_max: int
    current: dict[str, int] = {}
    """Containers by node id (x⁰_ij), only positive counts; empty while the app waits.

    Some changes are *forced* and do not count against θ2: a node of the app is not in the problem (it is gone), is drained,
    does not satisfy `require` (its labels have changed), or has less than what is on it now (its capacity was lowered; what
    apps that start `again` have there counts for these alone), or the app's own bounds no longer admit its count."""
    pinned: bool = False
    """Stays exactly at `current`: the app is in the middle of an adjustment, was just resized and has not worked since, or is
    not resized at all (`dorm.core.resizable`)."""
    absent: bool = False
    """None of its containers runs now, and `current` is its reservation: it waits for its retry after a failure, or its
    nodes went away.  It comes before apps that never ran, and is not part of θ2's |P|."""
    again: bool = False
    """It is restarted in any case because its owner asked for that: another place costs it nothing more."""
    require: str = ""
    """Nodes that it may use: an expression over their labels (`events.spec.requirements`); '' for any."""
    placement: Literal["", "spread", "pack"] = ""
    """A preference among otherwise equally good placements: few nodes, or few containers on each."""
    gang: int = 1
    """Containers come in groups of this size, each whole on one node; `n_min`, `n_max` and `current` are multiples."""
    waited_s: float = 0.0
    """Seconds for which it has been waiting, 0 while it runs: apps that have waited too long go first."""
    adjust_s: float | None = None
    """The cost of one adjustment, in seconds of its work: the measured pause and repeated work, and all work since its start
    for an app that has reported no checkpoint; None if none was measured."""
    usual_adjust_s: float | None = None
    """The same of the other apps on the cluster that are resized in the same way, for an app without measurements."""
    served_s: float = 0.0
    """Container-seconds that it has received so far: its attained service (Tiresias, NSDI 2019, §3.1)."""
    served_on: dict[str, float] = {}
    """The part of these on nodes of each type (`NodeRoom.type`); the rest of `served_s` was on nodes without a type."""
    held_s: float | None = None
    """Seconds since it got its present containers; None if unknown, and while it has none."""
    remaining_steps: float | None = None
    """Remaining steps of its work; None if its owner did not declare how many there are."""
    speed: tuple[tuple[int, float], ...] = ()
    """Containers and steps per second, ascending by containers, as its owner declares; empty if unknown."""
    speed_on: dict[str, tuple[tuple[int, float], ...]] = {}
    """The same by type of node (`NodeRoom.type`), if it differs; a type that is missing here has `speed`."""
    measured: tuple[Measured, ...] = ()
    """Measured speeds of the app; policies that learn weigh this against `speed`."""
    alike: tuple[Measured, ...] = ()
    """The same of a similar app, for an app without measurements."""
    alike_by_type: tuple[Measured, ...] = ()
    """The same of similar apps that have worked on several types of nodes, for an app that has not."""
    tried: int = 0
    """The largest number of containers that it was measured with, if its speed is not declared; 0 for no limit."""
    age_s: float = 0.0
    """Seconds since it was submitted."""
    adjustments: int = 0
    """Number of times that it was resized so far, while it ran."""
    batch: Batch | None = None
    """None if the batch size is fixed, and the speed is that with it."""
    utility: Utility | None = None
    """The worth of its completion by time; None if its owner does not say."""
    plan: Plan | None = None
    """The promise of an earlier answer; None if nothing was."""
    work_s: float | None = None
    """Seconds of one worker's time that remain of its work; None if its owner does not say."""
    chunks: int = 0
    """The maximum number of its concurrent workers, because each works on its own chunk of data; 0 for no such bound."""
    servers: int = 0
    """Number of its containers that are parameter servers, which do no work themselves."""
    workers_per_server: int = 0
    """Instead of `servers`: one parameter server for this many workers, or a part of them; 0 for no such ratio."""

    @property
    def holds(self) -> dict[str, int]:
        """Containers by node that it has now; a reservation does not count."""
        return {} if self.absent else self.current


class Problem(msgspec.Struct, frozen=True):
    """Nodes in any order, apps in order of arrival (it decides ties and first-come-first-served).  Ids are unique."""

    nodes: tuple[NodeRoom, ...]
    apps: tuple[AppDemand, ...]
    at_s: float = 0.0
    """The time of the question, in seconds since any fixed moment; only policies that plan ahead use it."""


class Reason(msgspec.Struct, frozen=True):
    """Why an app waits or has fewer than n_max containers: a code for programs, a sentence for people."""

    code: str
    """One of
    `resources`     no room for a further container (or for n_min of them) next to the others,
    `ports`         there is room, but the nodes that have it have no free port in their ranges,
    `no_nodes`      not even an empty cluster would hold n_min containers,
    `drained`       there would be room on nodes that are drained,
    `constraint`    there is room, but not on nodes that satisfy its `require`,
    `reserved`      the free room is kept for an app that has waited too long, or that ran before its nodes went away,
    `overhead`      there is room, or could be, but θ2 (or the absolute cap) lets no further app change in this round,
    `fairness`      one more would push the fairness loss over θ1's bound,
    `floor`         one more would take what another app needs to reach its soft floor,
    `price`         one more is worth less than the work that changing the app would lose, or than its price (oasis),
    `adjusting`     the app is in the middle of an adjustment,
    `settling`      an app that could make room was just resized and has not worked since (set by the core),
    `held`          the app has failed, and gets no more before it has run well (set by the core),
    `static_count`  the policy gives it a fixed number (static, tiresias, fifo, srtf, gavel, shockwave),
    `queue`         the policy serves others first (static, tiresias, optimus, fifo, srtf, gavel, themis, pollux, sia), or its
                    turn comes later in a plan (oasis, shockwave),
    `budget`        its budget buys no more at the others' bids (market),
    `gain`          it would not be done earlier with more (dorm-speed, optimus), or others gain more by it (optimus,
                    pollux, sia),
    `learning`      its speed with more is not known yet, and it grows to twice what is known (dorm-speed),
    `not_resized`   the app-level policy gives nothing more to a running app,
    `no_checkpoint` it has reported no checkpoint, so a resize would restart it from the beginning (set by the core),
    `not_resizable` its owner wants it not to be resized (set by the core),
    `solver`        the solver stopped at its limit, so nothing better is known."""
    text: str


class Allocation(msgspec.Struct, frozen=True):
    """A policy's answer, with the figures a reader of the decision needs to understand it.

    `counts` has every app of the problem, in sorted order of ids, each with its containers by node (positive counts
    only, sorted by node id); an app that must wait has an empty map.
    """

    counts: dict[str, dict[str, int]]
    reasons: dict[str, Reason]
    """Reasons by app, for each app below its n_max."""
    utilization: float
    """U = Σ_k (Σ_ij x_ij d_ik) / (Σ_j c_jk), between 0 and the number of resource kinds."""
    fairness_loss: float
    """F = Σ_i |s_i - ŝ_i|, over all apps that an empty cluster could run, waiting ones included."""
    fairness_budget: float
    """2m·θ1; -1 if the policy has no θ1."""
    excess: float
    """ξ = max(0, F' - budget): the part that integrality and n_min make unavoidable.  F' is the loss among the apps that
    can run at the same time; it differs from F only if an app has to wait for room (no resizing of the others could
    reduce that loss, so it must not make them shrink)."""
    overhead: int
    """Number of apps that ran before and still run with any x_ij changed, forced changes excluded."""
    overhead_budget: int
    """⌈θ2·|P|⌉, at most the absolute cap; or -1 if the policy has none."""
    shortage: dict[str, int]
    """Apps that get less than n_min (they get nothing and wait), with the number of containers that they lack."""
    status: str
    """`optimal` if proven; `near` if the answer is close to `bound` but not proven optimal; else what limited the solver:
    `node_limit`, `guard` if a crash guard fired (the answer may then differ between machines), `fallback` if the greedy answer
    stands because the solver found none or failed."""
    bound: float
    """A proven upper bound on utilization less the price of changes (of `dorm-exact`: under the earlier goals)."""
    change_cost: float = 0.0
    """The price of this answer's changes, in units of U: `utilization - change_cost <= bound`, with equality (to the solver's
    tolerance) if the answer is optimal."""
    batches: dict[str, int] = {}
    """The batch size of each app that has a range of them, for policies that choose it."""
    plans: dict[str, Plan] = {}
    """Promises for later, from policies that plan ahead; the next problem returns them in `AppDemand.plan`. A missing app
    keeps its plan."""


class Policy(Protocol):
    """Deterministic: the same problem and parameters give the same allocation, byte for byte, for any order of nodes and any
    hash seed."""

    name: str
    version: int

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """Fill in defaults; raise `ValueError` with one clear line for an unknown or out-of-range parameter."""
        ...

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        """`params` as for `check_params`, which is applied first."""
        ...
