"""Every kind of event: facts, in the past tense, frozen, with exactly one writer each.

    clients    AppSubmitted AppUpdated AppCancelRequested
    operators  NodeDrainRequested PolicyChanged SealRequested
    agents     NodeJoined NodeReported NodeLeft ContainerStarted ContainerExited AppCheckpointed AppProgressed
    master     Round, and in it AppAccepted AppRejected AppCompleted AppFailed AppCancelled GenerationReleased
               GenerationFailed IdleTicked Resized NodeLost NodeRecovered NodeLeaseEnded MasterElected LogSealed

Bodies are MessagePack maps whose `kind` names the class.  Adding a field with a default keeps the version; anything else
raises `VERSIONS[kind]` and adds an upcaster to `events.codec`.  Quantities are integers in base units (milli-cores, bytes,
devices, counts), times UTC nanoseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from events.limits import Figure, Moment, Name, Number, Seconds, Sequence, Signed, Slot
from events.spec import AppSpec


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=True, gc=False):
    """What every event has.  A client may leave all of it out; the log then fills in what it knows."""

    id: Name = ""
    """Unique, prefixed with the publisher; also the Nats-Msg-Id, so a repeated publish is stored once."""
    at: Moment = 0
    """When the publisher says it happened (UTC ns).  Information only: the log's own time orders things."""
    by: Name = ""
    """Who published it."""
    cause: Name = ""
    """Position (`seq` or `seq.index`) or id of what led to it."""
    v: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)] = 1
    """Schema version of this kind."""


Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""What a program may call a step of its work: exact in every language's numbers."""
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
PortOrNone = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Address = Annotated[str, msgspec.Meta(max_length=255)]
FolderId = Annotated[str, msgspec.Meta(max_length=64)]
"""Names a shared folder of checkpoints: what the marker in it says."""
NO_FOLDER = "missing"
"""In the place of such an id: there is no marker, so the folder is not mounted or was never one."""
ExitCode = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32 - 1)]
Identity = Annotated[str, msgspec.Meta(max_length=64)]
"""Which machine speaks under a node's name (`events.holders`); "" from agents before 0.5.1."""

# --- clients -----------------------------------------------------------------------------------------------------------


class AppSubmitted(Event, frozen=True):
    """Somebody wants an app to run.  The spec is kept as it came, so that a bad one can be refused with a reason."""

    spec: Any = None


class AppUpdated(Event, frozen=True):
    """New weight or bounds for an app; what is None stays."""

    app: Name
    weight: Annotated[float, msgspec.Meta(ge=0.001, le=1000)] | None = None
    n_min: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    n_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None


class AppCancelRequested(Event, frozen=True):
    app: Name
    reason: str = ""


# --- operators ---------------------------------------------------------------------------------------------------------


class NodeDrainRequested(Event, frozen=True):
    """Empty this node by adjustments (or, with `drain=False`, use it again)."""

    node: Name
    drain: bool = True
    until_rejoin: bool = False
    """Asked for by an agent that is about to stop: its next NodeJoined ends it, which never ends an operator's drain."""
    reason: str = ""
    identity: Identity = ""
    """With `until_rejoin`: of the agent that stops, which does not drain another machine of the same name."""


class PolicyChanged(Event, frozen=True):
    """New settings of the cluster; what is None stays.  On the log, so that a replay has them."""

    policy: str | None = None
    """Another policy starts with its defaults, unless `params` or `set_params` say otherwise."""
    params: dict[str, Any] | None = None
    """All parameters anew: those that it does not name are back at their defaults."""
    set_params: dict[str, Any] | None = None
    """These parameters alone; the others stay, and a value of None puts one back to its default.  Merged by the fold, so
    that of two operators who each change another parameter at once neither undoes the other's."""
    quiet_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] | None = None
    """How long the log must be quiet before a new allocation is computed."""
    quiet_limit_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] | None = None
    """The longest that a busy log can put an allocation off."""
    idle_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] | None = None
    """How long nothing must have happened before the allocation is looked at again (see `IdleTicked`), and the least time
    from one such look to the next."""
    heartbeat_s: Annotated[float, msgspec.Meta(ge=0.1, le=3_600)] | None = None
    """The longest that a node may take from one sign of life to the next."""
    node_grace_s: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] | None = None
    """A node not heard for this long is concluded lost: no new containers go there."""
    node_lease_s: Annotated[float, msgspec.Meta(ge=1, le=864_000)] | None = None
    """A node not heard for this long has stopped its containers by itself.  Times that would do harm together are refused,
    and with them the whole change (`events.times`)."""
    checkpoints: FolderId | None = None
    """Id of the folder of checkpoints that is the cluster's; "" leaves it to what the nodes announce."""
    retention_s: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] | None = None
    """How long an ended app, its containers and logs stay."""


class SealRequested(Event, frozen=True):
    """Seal the log now (`LogSealed`), this record included; the master does so now and then anyway."""


# --- agents ------------------------------------------------------------------------------------------------------------


class NodeJoined(Event, frozen=True):
    """An agent is up (again) on this node and says what the node has."""

    node: Name
    address: Address
    """Where other nodes reach this node's containers."""
    capacity: dict[str, Amount]
    ports: tuple[Port, Port]
    """First and last port that decisions may give to containers here; disjoint among agents on one address."""
    labels: dict[str, str] = {}
    runtime: str = "process"
    build: str = ""
    lease_s: Annotated[float, msgspec.Meta(ge=0, le=864_000)] = 0.0
    """For so long what runs there may run on as it is, which is more than the cluster's lease where that was lowered."""
    identity: Identity = ""
    """A join under a name that another identity holds changes nothing but what `Node.refused` says."""
    checkpoints: FolderId = ""
    """Id of the folder of checkpoints that is mounted there, or NO_FOLDER.  "" of an agent that does not look."""


class ContainerUse(msgspec.Struct, frozen=True, gc=False):
    """What one container used: CPU seconds since its start, bytes resident now."""

    app: Name
    generation: Number
    slot: Slot
    cpu_s: Seconds
    memory: Amount


class NodeReported(Event, frozen=True):
    """Heartbeat and figures; on a stream of its own, with an age limit."""

    node: Name
    used: dict[str, Amount] = {}
    containers: list[ContainerUse] = []
    identity: Identity = ""


class NodeLeft(Event, frozen=True):
    """An agent stopped in good order: none of its containers runs."""

    node: Name
    identity: Identity = ""


class ContainerStarted(Event, frozen=True):
    app: Name
    generation: Number
    slot: Slot
    node: Name
    started_at: Moment = 0
    identity: Identity = ""


ExitReason = Literal[
    "exit", "out_of_memory", "image", "command", "spec", "device", "port", "checkpoints", "lost", "unknown"
]


CUT_OFF = "the node was cut off from the log for longer than its lease"
"""The message of a container that its node's lease ended."""


class ContainerExited(Event, frozen=True):
    """A container ended, or could not start at all (then `exit_code` is None and `message` says why)."""

    app: Name
    generation: Number
    slot: Slot
    node: Name
    exit_code: ExitCode | None = None
    asked: bool = False
    """Whether the agent had asked it to stop before it ended."""
    killed: bool = False
    """It had not ended within its grace time and was killed: what it did after its last checkpoint is lost."""
    reason: ExitReason = "exit"
    message: str = ""
    started_at: Moment = 0
    exited_at: Moment = 0
    identity: Identity = ""


class AppCheckpointed(Event, frozen=True):
    """The app said, by its progress file, that it saved its state up to this step."""

    app: Name
    generation: Number
    step: Step


class AppProgressed(Event, frozen=True):
    """The app's own words from its progress file, at a limited rate."""

    app: Name
    generation: Number
    step: Step
    loss: float | None = None
    samples_per_s: float | None = None


# --- master ------------------------------------------------------------------------------------------------------------


class AppAccepted(Event, frozen=True):
    """Admitted.  Carries the checked spec, which is all that agents know of an app."""

    app: Name
    spec: AppSpec
    submission: Name
    """Id of the AppSubmitted."""


class AppRejected(Event, frozen=True):
    """A submission or an update that is refused, and why.  `app` is empty where there was no usable name."""

    app: Name
    submission: Name
    reason: str
    refused: Literal["submission", "update"] = "submission"


class AppCompleted(Event, frozen=True):
    """All slots of the generation ended with exit code 0, unasked."""

    app: Name
    generation: Number


Failure = Literal[
    "", "exit", "out_of_memory", "image", "command", "spec", "device", "port", "checkpoints", "lost", "unknown",
    "start", "stalled", "stopped",
]  # fmt: skip
"""Why a generation failed: why its first container ended; or it had not started, or showed no work, by its deadline; or it
was stopped though nobody had ordered that.  "" in logs of earlier versions."""


class AppFailed(Event, frozen=True):
    app: Name
    generation: Number
    reason: str
    failure: Failure = ""
    exit_codes: dict[str, ExitCode | None] = {}
    """By slot, as text: maps with other keys have no deterministic encoding."""


class AppCancelled(Event, frozen=True):
    app: Name
    generation: Number
    reason: str = ""


class GenerationFailed(Event, frozen=True):
    """A generation that can't go on: agents stop what is left of it, and the app waits until `retry_at`."""

    app: Name
    generation: Number
    reason: str
    counted: bool = True
    """Whether it uses up one of the app's retries; a lost node or a taken port is not the app's fault."""
    port: bool = False
    """Whether a port was taken."""
    failure: Failure = ""
    retries: Number = 0
    """How many retries it has used up of those that this failure counts against, the one that follows included."""
    limit: Number = 0
    """How many of those it has."""
    anew: bool = False
    """It had worked for so long (`retries.reset` of its spec) that its earlier failures are forgotten."""
    retry_at: Moment = 0
    """UTC ns before which it is not placed again."""


class NodeLost(Event, frozen=True):
    """Silent for longer than the grace time: nothing new goes there, what runs there may still run."""

    node: Name
    last_heard: Moment


class NodeRecovered(Event, frozen=True):
    node: Name


class NodeLeaseEnded(Event, frozen=True):
    """Silent for so long that its agent has surely stopped all containers by itself."""

    node: Name
    last_heard: Moment


class GenerationReleased(Event, frozen=True):
    """The barrier is passed: every container of earlier generations has ended and the room is free."""

    app: Name
    generation: Number
    previous: Number = 0
    """The generation that was stopped for it, 0 for a first start."""
    resume: bool = False
    """Whether a checkpoint is believed, so that the resume command starts it."""
    checkpoint: Step | None = None
    """The step of that checkpoint."""
    lost_steps: Step = 0
    """Steps that had been done after it and are done again."""
    killed: Number = 0
    """How many containers of the previous generation were killed because they had not ended within their grace time."""
    stop_s: Seconds = 0.0
    """From the decision until the last container of the previous generation had ended."""
    wait_s: Seconds = 0.0
    """From then until this release: waiting for room."""
    lease_ended: list[str] = []
    """Nodes whose lease, not whose containers' exit, ended the previous generation."""
    checkpoints: FolderId = ""
    """Id of the cluster's folder of checkpoints: a node starts its containers only where that folder is mounted."""


class Placed(msgspec.Struct, frozen=True, gc=False):
    """One slot of a generation: where its container goes and at which address its peers find it."""

    slot: Slot
    node: Name
    address: Address
    port: PortOrNone


Adjustment = Literal["start", "restart", "stop"]


class Resize(msgspec.Struct, frozen=True, gc=False):
    """One app's way from one generation to the next.  An empty placement means that it has to wait."""

    app: Name
    from_generation: Number
    to_generation: Number
    placement: list[Placed]
    adjustment: Adjustment
    master_port: PortOrNone = 0
    """A free port on the first slot's address, for engines that need a rendezvous."""


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Why an app waits or is below its n_max: a code for programs and a sentence for people."""

    code: str
    text: str


class IdleTicked(Event, frozen=True):
    """The allocation was looked at again though nothing had happened for a while, first in its round.

    Each decision changes only a few apps (θ2), so after departures, or where a solver stopped at a limit, more can be had
    by asking again.  A `Resized` that follows in the same round is what came of it; a tick without changes is the last one
    until there is a new cause, so that an idle log does not grow.  Policy, solver, status and digest as in `Resized`."""

    policy: str
    policy_version: Number
    solver: str
    status: str
    digest: str


Trigger = Literal["events", "idle", "deadline"]


class Resized(Event, frozen=True):
    """One decision: all resizes of a round, and all that is needed to say why."""

    policy: str
    policy_version: Number
    params: dict[str, Any]
    solver: str
    """Library and version that solved it: where it differs, a replay says `not checked`."""
    changes: list[Resize]
    reasons: dict[str, Waiting]
    """By app, for each that waits or is below n_max."""
    utilization: Figure
    fairness_loss: Figure
    fairness_budget: float
    excess: float
    overhead: Number
    overhead_budget: Signed
    status: str
    bound: float
    digest: str
    """Of the state at `basis` that this was decided on."""
    change_cost: Figure = 0.0
    """What its changes are priced at, in units of the utilization: `utilization - change_cost` is what was maximised."""
    shortage: dict[str, Number] = {}
    """How many containers each app that waits for n_min lacks."""
    trigger: Trigger = "events"
    """What it was decided for: something had happened, nothing had for a while (`IdleTicked`), or a pause or somebody's
    patience was over."""
    unsaid: Number = 0
    """How many apps wait, or are below n_max, whose reason did not fit into the message (`dorm.core.round_size`)."""
    put_off: Number = 0
    """How many changes of this allocation did not fit; its figures count them, and the next decision follows at once."""


class MasterElected(Event, frozen=True):
    """A master took over: decisions of lower epochs are void."""

    epoch: Number
    build: str = ""
    key: str = ""
    """The public key of its seals (`LogSealed`), empty where it makes none."""


class LogSealed(Event, frozen=True):
    """The log's hash chain (`events.chain.hash_chain`) as this master read it, signed with its key: whoever changes,
    removes or moves a record at or before `upto` afterwards can't make a seal that fits.  Alone in its round.  A seal is a
    record like any other, so the next one covers it."""

    upto: Sequence
    """The last record that is covered: the basis of its round."""
    chain: str
    """The chain after that record: 64 hex digits."""
    key: str
    """The public key that verifies it: an nkey."""
    signature: str
    """Of what `events.chain.seals.statement` says of it: 128 hex digits."""
    after: Sequence = 0
    """Marks are of records after this one: what the seal before covered, as far as its master knew."""
    every: Annotated[int, msgspec.Meta(ge=1, le=2**62)] = 1
    marks: str = ""
    """The first 16 hex digits of the chain after each record whose sequence is a multiple of `every`, from `after` to
    `upto`, which tell near which record damage is."""


MasterFact = (
    AppAccepted
    | AppRejected
    | AppCompleted
    | AppFailed
    | AppCancelled
    | GenerationFailed
    | NodeLost
    | NodeRecovered
    | NodeLeaseEnded
    | GenerationReleased
    | IdleTicked
    | Resized
    | MasterElected
    | LogSealed
)


class Unreadable(Event, frozen=True, tag="Unreadable"):
    """Stands for a record that can't be decoded: skipped and counted by the fold, never fatal.  Never published."""

    subject: str
    reason: str


class Unknown(Event, frozen=True, tag="Unknown"):
    """Stands for a kind, or a version of one, that this build does not know.  Never published."""

    subject: str
    name: str


class Round(Event, frozen=True):
    """All that the master writes at once: one message, so all of it or nothing.  A position in the log is `seq.index`."""

    epoch: Number
    basis: Sequence
    """The sequence up to which the log was folded when this was decided."""
    allocated: bool
    """Whether the allocation was computed anew (after the quiet time), so that an audit asks the same question."""
    events: list[MasterFact | Unknown]
    """`Unknown` stands in the place of a fact that this build does not know, so that positions stay the same."""
    core: Number = 0
    """Which version of the core decided it (`dorm.core.state.SCHEMA`): another one is not asked again by an audit."""


Published = (
    AppSubmitted
    | AppUpdated
    | AppCancelRequested
    | NodeDrainRequested
    | PolicyChanged
    | SealRequested
    | NodeJoined
    | NodeReported
    | NodeLeft
    | ContainerStarted
    | ContainerExited
    | AppCheckpointed
    | AppProgressed
    | Round
)
"""What one message on the log may hold."""
