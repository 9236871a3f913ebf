"""What a master publishes, as the facts of a `Round`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from events.fields import (
    AppId,
    AppKey,
    AppName,
    Code,
    CoreWord,
    CutText,
    FreeText,
    NodeId,
    NodeKey,
    Own,
    Params,
    PolicyName,
    RequestId,
    holds,
)
from events.kinds.base import Address, Event, ExitCode, FolderId, Kind, PortOrNone, Step
from events.kinds.revisions import OfSteering
from events.limits import Figure, Moment, Name, Number, Seconds, Sequence, Signed, Slot
from events.spec import AppSpec, BatchSize


class AppAccepted(Event, frozen=True):
    """The app is admitted. Carries the checked spec, which is everything that agents know about an app."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round", lists=("news", "apps"))

    app: AppId
    spec: AppSpec
    submission: RequestId
    """Id of the AppSubmitted."""
    after: list[AppId] = []
    """Ids of the apps that it waits for, one for each entry of `after` in the spec."""


class AppRejected(Event, frozen=True):
    """A submission or an update is refused, and why.  `app` is empty if there was no usable name."""

    KIND: ClassVar[Kind] = Kind(
        writers=("master",), rule="round", on="app", by_name=True, stored="round", lists=("news", "failures", "apps")
    )

    app: AppName
    submission: RequestId
    reason: FreeText
    refused: Literal["submission", "update"] = "submission"
    code: CoreWord = ""
    """The reason's stable code, such as `spec.demand.too_large`; "" in logs of earlier versions."""


class AppCompleted(Event, frozen=True):
    """All slots of the generation ended with exit code 0, without a request to stop."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round", lists=("news", "apps"))

    app: AppId
    generation: Number


Failure = Literal[
    "", "exit", "out_of_memory", "image", "command", "spec", "device", "port", "checkpoints", "lost", "unknown",
    "start", "stalled", "stopped",
]  # fmt: skip
"""Why a generation failed: its first container ended for this reason, it had not started or worked by its deadline,
or it was stopped without a request.  "" in logs of earlier versions."""


OfWhom = Literal["", "app", "node", "open"]
"""Origin of a failure: the app, its node, or not known yet.  "" for one that says nothing about that, and in logs of earlier
versions."""


class AppFailed(Event, frozen=True):
    KIND: ClassVar[Kind] = Kind(
        writers=("master",), rule="round", on="app", stored="round", lists=("news", "failures", "apps")
    )

    app: AppId
    generation: Number
    reason: FreeText
    failure: Failure = ""
    exit_codes: dict[str, ExitCode | None] = {}
    """Exit codes by slot, as text: maps with other keys have no deterministic encoding."""
    node: NodeId = ""
    """Node on which the first container failed; "" in logs of earlier versions."""
    fault: OfWhom = ""


class AppCancelled(Event, frozen=True):
    """The app has ended on request, or, with a code, because of its spec."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round", lists=("news", "apps"))

    app: AppId
    generation: Number
    reason: FreeText = ""
    code: CoreWord = ""
    """`after`: an app that it waited for has not ended as required; `max_runtime`: it has run for as long as it may.
    Its containers get their grace time, as on request."""


class AppKilled(Event, frozen=True):
    """A user requested a kill: agents immediately kill all running containers of the app.  An app that had not ended
    is cancelled in the same round.  Agents from before 0.6.0 do not know it, and give its containers their grace
    time."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round")

    app: AppId
    generation: Number


class GenerationFailed(Event, frozen=True):
    """A generation can't continue: agents stop the rest of it, and the app waits until `retry_at`."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round", lists=("news", "failures"))

    app: AppId
    generation: Number
    reason: FreeText
    counted: bool = True
    """Whether it uses up one of the app's retries; a lost node or a taken port is not the app's fault."""
    port: bool = False
    """Whether a port was taken."""
    failure: Failure = ""
    retries: Number = 0
    """Number of retries that the app has used of the limit that this failure counts against, including the next one."""
    limit: Number = 0
    """Limit of the retries."""
    anew: bool = False
    """It had worked long enough (`retries.reset` of its spec) for earlier failures to be forgotten."""
    retry_at: Moment = 0
    """UTC ns before which it is not placed again."""
    node: NodeId = ""
    """Node on which the first container failed; "" if that is not known, and in logs of earlier versions."""
    fault: OfWhom = ""


class NodeSuspected(Event, frozen=True):
    """Different apps failed on a node at their start, so it takes nothing new until `NodeTrusted`; what runs there stays."""

    KIND: ClassVar[Kind] = Kind(
        writers=("master",), rule="round", on="node", stored="round", lists=("news", "failures", "nodes")
    )

    node: NodeId
    reason: FreeText
    apps: list[AppId] = []
    """Those that failed there."""
    failures: list[FreeText] = []
    """Descriptions of the failures, in words."""
    least: Number = 0
    """The node returns when fewer of these apps are left that are not broken themselves."""
    probe_at: Moment = 0
    """UTC ns from which one app may be tried there."""


class NodeTrusted(Event, frozen=True):
    """A suspect node takes new containers again."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="node", stored="round", lists=("news", "nodes"))

    node: NodeId
    how: Literal["probe", "evidence", "operator"]
    """An app was started there and ran well; the apps that failed there turned out to be broken; nodes do not become suspect
    any more by the settings.  An operator's own word is a `NodeTrustRequested`."""
    reason: FreeText = ""


class NodeLost(Event, frozen=True):
    """A node is silent for longer than the grace time: no new containers go there; those running may still run."""

    KIND: ClassVar[Kind] = Kind(
        writers=("master",), rule="round", on="node", stored="round", lists=("news", "failures", "nodes")
    )

    node: NodeId
    last_heard: Moment


class NodeRecovered(Event, frozen=True):
    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="node", stored="round", lists=("news", "nodes"))

    node: NodeId


class NodeLeaseEnded(Event, frozen=True):
    """A node has been silent long enough to have certainly stopped all its containers by itself."""

    KIND: ClassVar[Kind] = Kind(
        writers=("master",), rule="round", on="node", stored="round", lists=("news", "failures", "nodes")
    )

    node: NodeId
    last_heard: Moment


class GenerationReleased(Event, frozen=True):
    """The generation may start: every container of earlier generations has ended and the room is free."""

    KIND: ClassVar[Kind] = Kind(
        writers=("master",), rule="round", on="app", stored="round", lists=("news", "decisions")
    )

    app: AppId
    generation: Number
    previous: Number = 0
    """The generation that it replaces, 0 for a first start."""
    resume: bool = False
    """Whether the app has a valid checkpoint, so the resume command starts it."""
    checkpoint: Step | None = None
    """The step of that checkpoint."""
    lost_steps: Step = 0
    """Steps after that checkpoint, which are repeated."""
    killed: Number = 0
    """Number of containers of the previous generation that were killed because they outlived their grace time."""
    stop_s: Seconds = 0.0
    """Seconds until the last container of the previous generation had ended: from the decision, or from the end of
    `prepare_s`."""
    wait_s: Seconds = 0.0
    """Seconds from then until this release: waiting for room."""
    lease_ended: list[NodeKey] = []
    """Nodes where the previous generation ended by the node's lease, not by its containers' exits."""
    checkpoints: FolderId = ""
    """Id of the cluster's checkpoint folder: a node starts these containers only where that folder is mounted."""
    prepare_s: Seconds = 0.0
    """Seconds for which the previous generation kept working after the decision, while this one was prepared."""


class Placed(msgspec.Struct, frozen=True, gc=False):
    """One slot of a generation: its container's node, and the address at which its peers find it."""

    slot: Slot
    node: NodeId
    address: Address
    port: PortOrNone


Adjustment = Literal["start", "restart", "stop", "live"]
LiveReason = Literal["", "members_stay", "no_member_stays", "missed_deadline"]
"""Why an app with `elastic: live` is resized live or restarted: members stay and keep training; none would stay; it
missed the deadline of its last live resize.  "" for other apps."""


class Resize(msgspec.Struct, frozen=True, gc=False):
    """One app's adjustment from one generation to the next.  An empty placement means that it has to wait.

    A live adjustment keeps the generation: `to_generation` is `from_generation`, and the placement is the whole
    target membership.  Members that stay keep slot, node, address and port; new members have slots that the
    generation has never used."""

    app: AppId
    from_generation: Number
    to_generation: Number
    placement: list[Placed]
    adjustment: Adjustment
    master_port: PortOrNone = 0
    """A free port on the first slot's address, for engines that need a rendezvous."""
    membership: Number = 0
    """The membership that a live adjustment leads to, counted from 1 in each generation; 0 for other adjustments."""
    why: LiveReason = ""
    prepare_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    """Seconds for which the previous generation keeps working in a restart, at most, until every node of the placement has
    prepared its containers (`ContainersPrepared`). 0: it stops immediately."""
    lost_s: Seconds = 0.0
    """Seconds of work that the change undoes: the app has reported no checkpoint, so it restarts from the beginning.  0 if it
    has, or is expected to save when it is stopped."""


class MembersReleased(Event, frozen=True):
    """A live adjustment may start: the room of its new members is free.  Agents start them, and announce this
    membership to all members, old and new."""

    KIND: ClassVar[Kind] = Kind(
        writers=("master",), rule="round", on="app", stored="round", lists=("news", "decisions")
    )

    app: AppId
    generation: Number
    membership: Number
    members: list[Placed]
    """The whole target membership, by slot."""
    newcomers: list[Slot] = []
    leavers: list[Slot] = []
    """Members of the current membership that have to leave by themselves."""
    wait_s: Seconds = 0.0
    """Seconds from the decision until this release: waiting for room."""
    checkpoints: FolderId = ""
    """Same as in `GenerationReleased`."""


class MembersLost(Event, frozen=True):
    """Members of a live app ended without a request, and enough still run: these continue, and agents announce this
    membership to them. Failure and retries are as in GenerationFailed; the generation continues."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round", lists=("news", "failures"))

    app: AppId
    generation: Number
    membership: Number
    members: list[Placed]
    """The whole membership without the lost members, by slot."""
    lost: list[Slot]
    leavers: list[Slot] = []
    """Members that have to leave: because of the adjustment in progress, or because their gang is no longer
    complete."""
    reason: FreeText = ""
    counted: bool = True
    port: bool = False
    failure: Failure = ""
    retries: Number = 0
    limit: Number = 0
    anew: bool = False
    resize_at: Moment = 0
    """UTC ns before which the app is not resized again."""
    node: NodeId = ""
    fault: OfWhom = ""


class MembershipCommitted(Event, frozen=True):
    """An announced membership trains (`MembershipChanged`).  Agents stop the members that it leaves out and that still run."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round")

    app: AppId
    generation: Number
    membership: Number


class LiveResizeFailed(Event, frozen=True):
    """An announced membership did not train within the app's live deadline: the app restarts from its checkpoint,
    with the target placement on the nodes that are available."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round", lists=("news", "failures"))

    app: AppId
    generation: Number
    membership: Number
    reason: FreeText
    restart: Resize


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Why an app waits or is below its n_max: a code for programs and a sentence for people."""

    code: CoreWord
    text: FreeText


Plugin = Annotated[str, msgspec.Meta(max_length=200), holds("own")]
"""The distribution that a plug-in policy comes from, and its version: `acme-dorm 1.2.0`; "" for a policy of Dorm itself."""


class IdleTicked(Event, frozen=True):
    """The allocation was reconsidered although nothing had happened for a while; first in its round. Each decision
    changes only a few apps (θ2), so after departures, or if a solver stopped at a limit, reconsidering may improve
    the allocation.  The changes, if any, are in a `Resized` of the same round.  A tick without changes is the last
    one until there is a new cause, so an idle log does not grow.  Policy, solver, status and digest as in
    `Resized`."""

    KIND: ClassVar[Kind] = Kind(
        writers=("master",), rule="round", on="cluster", stored="round", lists=("decisions", "noise")
    )

    policy: PolicyName
    policy_version: Number
    solver: CoreWord
    status: CoreWord
    digest: Own
    plugin: Plugin = ""


Trigger = Literal["events", "idle", "deadline"]


class PolicyFailed(Event, frozen=True):
    """The policy failed: every app keeps its containers, and the master continues. The master asks again after the
    next event that could change the allocation, and on idle ticks whose distance doubles. The same failure is
    recorded once, and with each idle tick."""

    KIND: ClassVar[Kind] = Kind(
        writers=("master",), rule="round", on="cluster", stored="round", lists=("news", "failures")
    )

    policy: Annotated[Name, holds("policy")]
    policy_version: Number
    code: Code
    """`policy.raised`, `policy.infeasible`, `policy.nonsense`, `policy.too_slow`, `policy.ended`, `policy.not_installed`."""
    reason: CutText
    digest: Own
    """Digest of the state at `basis`."""
    trigger: Trigger = "events"
    plugin: Plugin = ""


class Resized(Event, frozen=True):
    """One decision: all resizes of a round, and everything that is needed to explain them."""

    KIND: ClassVar[Kind] = Kind(
        writers=("master",), rule="round", on="apps", stored="round", lists=("news", "decisions")
    )

    policy: PolicyName
    policy_version: Number
    params: Params
    solver: CoreWord
    """Library and version that solved it: if they differ, a replay reports `not checked`."""
    changes: list[Resize]
    reasons: dict[AppKey, Waiting]
    """Reasons by app, for each that waits or is below n_max."""
    utilization: Figure
    fairness_loss: Figure
    fairness_budget: float
    excess: float
    overhead: Number
    overhead_budget: Signed
    status: CoreWord
    bound: float
    digest: Own
    """Digest of the state at `basis` from which this was decided."""
    change_cost: Figure = 0.0
    """The price of its changes, in units of utilization: `utilization - change_cost` was maximized."""
    shortage: dict[AppKey, Number] = {}
    """Number of missing containers, for each app that waits for n_min."""
    trigger: Trigger = "events"
    """Why it was decided: an event, a quiet period (`IdleTicked`), or the end of a pause or of an app's patience."""
    unsaid: Number = 0
    """Number of apps that wait or are below n_max without a reason here, because the message had no room
    (`dorm.core.round_size`)."""
    put_off: Number = 0
    """Number of changes of this allocation that did not fit.  The figures include them, and the next decision follows
    immediately."""
    plugin: Plugin = ""
    batches: dict[AppId, BatchSize] = {}
    """New batch sizes, by app: an app that this decision changes uses its size from its next generation or membership
    on, any other app as soon as it reads it."""


class PolicyPlugin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plug-in policy that is installed where a master runs."""

    name: Annotated[Name, holds("policy")]
    version: Number
    plugin: Plugin
    defaults: dict[str, Any] = {}
    """All parameters of the policy, with their defaults."""


class PlannedSlot(msgspec.Struct, frozen=True, gc=False):
    """One slot of a plan: from `at` (UTC ns) on, until the next slot, the app has these containers by node."""

    at: Moment
    containers: dict[NodeId, Number]


class AppPlanned(Event, frozen=True):
    """A promise of a policy that plans ahead, in the same round as its `Resized`: the app is admitted. Valid until
    the app's next plan. The last slot has no containers: the app should then be done. A plan without slots is
    withdrawn. A refusal is a reason in `Resized`, because it is reconsidered with each decision."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round")

    app: AppId
    slots: list[PlannedSlot]
    worth: Figure = 0.0
    """The value of completing by then, from the utility that the owner declares."""
    cost: Figure = 0.0
    """The cost of its resources at the prices of that moment; the app was admitted because its value is higher, or
    earlier."""
    more: Number = 0
    """Set on the last plan of a round: the number of further plans that did not fit into the message. The next
    decision follows immediately."""


class RefusedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that its author may not publish."""

    seq: Sequence
    who: Annotated[str, msgspec.Meta(max_length=64), holds("user")]
    """The author: the last token of the record's subject."""
    of: Code
    """The event's kind."""
    about: Annotated[Name, holds("own")]
    """The app, node, user or webhook that it names; "" for none."""
    code: Code
    reason: CutText


class RecordsRefused(Event, frozen=True):
    """Records had no effect, because their authors may not publish them; submissions and updates are answered instead
    (`AppRejected`)."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="cluster", stored="round")

    records: Annotated[list[RefusedRecord], msgspec.Meta(max_length=64)]
    upto: Sequence
    """The last of them."""
    omitted: Number = 0
    """Number of earlier ones that are omitted: only the latest are kept."""


class MasterElected(Event, frozen=True):
    """A master took over: decisions of lower epochs are void."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="cluster", stored="round", lists=("news",))

    epoch: Number
    build: Own = ""
    key: Own = ""
    """The public key of its seals (`LogSealed`), empty if it makes none."""
    policies: list[PolicyPlugin] = []
    """The plug-in policies that it can use. The fold accepts only these policies and Dorm's own, so a state does not
    depend on what is installed where the log is read."""


class LogSealed(Event, frozen=True):
    """The log's hash chain (`events.chain`) as this master read it, signed with its key.  After that, no one
    without the key can change, remove or move a record at or before `upto` and still show a valid seal.  Alone in its round.
    A seal is a record, so the next one covers it."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="cluster", stored="round", lists=("noise",))

    upto: Sequence
    """The last record covered: the basis of its round."""
    chain: Own
    """The chain after that record: 64 hex digits."""
    key: Own
    """The public key that verifies the seal: an nkey."""
    signature: Own
    """Signature of `events.chain.seal_statement`: 128 hex digits."""
    after: Sequence = 0
    """Marks cover records after this one: the end of the previous seal, as far as this master knew."""
    every: Annotated[int, msgspec.Meta(ge=1, le=2**62)] = 1
    marks: Own = ""
    """The first 16 hex digits of the chain after each record whose sequence is a multiple of `every`, from `after` to `upto`.
    They locate damage."""


MasterFact = (
    AppAccepted
    | AppRejected
    | AppCompleted
    | AppFailed
    | AppCancelled
    | AppKilled
    | GenerationFailed
    | NodeSuspected
    | NodeTrusted
    | NodeLost
    | NodeRecovered
    | NodeLeaseEnded
    | GenerationReleased
    | MembersReleased
    | MembersLost
    | MembershipCommitted
    | LiveResizeFailed
    | IdleTicked
    | PolicyFailed
    | Resized
    | AppPlanned
    | RecordsRefused
    | OfSteering
    | MasterElected
    | LogSealed
)
