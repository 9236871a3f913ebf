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
    """The fields of every event.  A client may omit them all; the reader then fills in what the log knows."""

    id: Name = ""
    """Unique, prefixed with the publisher; also the Nats-Msg-Id, so a repeated publish is stored once."""
    at: Moment = 0
    """When the publisher says it happened (UTC ns).  Information only: log time orders events."""
    by: Name = ""
    """Who published it."""
    cause: Name = ""
    """Position (`seq` or `seq.index`) or id of the event that caused it."""
    v: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)] = 1
    """Schema version of this kind."""


Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A step of a program's work, small enough to be exact in every language's numbers."""
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
PortOrNone = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Address = Annotated[str, msgspec.Meta(max_length=255)]
FolderId = Annotated[str, msgspec.Meta(max_length=64)]
"""Id of a shared folder of checkpoints, as its marker file states it."""
NO_FOLDER = "missing"
"""Stands for such an id where there is no marker: the folder is not mounted, or never was a folder of checkpoints."""
ExitCode = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32 - 1)]
Identity = Annotated[str, msgspec.Meta(max_length=64)]
"""Which machine publishes under a node's name (`events.holders`); "" from agents before 0.5.1."""

# --- clients -----------------------------------------------------------------------------------------------------------


class AppSubmitted(Event, frozen=True):
    """A client submits an app.  The spec is kept as it came, so that a bad one can be refused with a reason."""

    spec: Any = None


class AppUpdated(Event, frozen=True):
    """New weight or bounds for an app; None keeps the current value."""

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
    """Set by an agent that is about to stop: its next NodeJoined ends this drain.  An operator's drain is never ended so."""
    reason: str = ""
    identity: Identity = ""
    """With `until_rejoin`: the identity of the agent that stops.  Another machine of the same name is not drained."""


class PolicyChanged(Event, frozen=True):
    """New settings of the cluster; None keeps the current value.  They are on the log, so a replay has them."""

    policy: str | None = None
    """A changed policy starts with its defaults, unless `params` or `set_params` override them."""
    params: dict[str, Any] | None = None
    """Replaces all parameters: those not named return to their defaults."""
    set_params: dict[str, Any] | None = None
    """Changes only these parameters; None returns one to its default.  The fold merges them, so two operators who change
    different parameters at once do not undo each other."""
    quiet_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] | None = None
    """How long the log must be quiet before a new allocation is computed."""
    quiet_limit_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] | None = None
    """The longest that a busy log can delay an allocation."""
    idle_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] | None = None
    """How long nothing must have happened before the allocation is looked at again (see `IdleTicked`), and the shortest
    interval between two such looks."""
    heartbeat_s: Annotated[float, msgspec.Meta(ge=0.1, le=3_600)] | None = None
    """The longest interval between two heartbeats of a node."""
    node_grace_s: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] | None = None
    """A node not heard for this long counts as lost: no new containers go there."""
    node_lease_s: Annotated[float, msgspec.Meta(ge=1, le=864_000)] | None = None
    """A node not heard for this long has stopped its containers by itself.  A change is refused as a whole if its times would
    do harm together (`events.times`)."""
    checkpoints: FolderId | None = None
    """Id of the cluster's folder of checkpoints; "" leaves the choice to what the nodes announce."""
    retention_s: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] | None = None
    """How long an ended app, its containers and its logs are kept."""


class SealRequested(Event, frozen=True):
    """Seal the log now (`LogSealed`), this record included; the master also seals now and then without a request."""


# --- agents ------------------------------------------------------------------------------------------------------------


class NodeJoined(Event, frozen=True):
    """An agent has started on this node and states what the node has."""

    node: Name
    address: Address
    """The address at which other nodes reach this node's containers."""
    capacity: dict[str, Amount]
    ports: tuple[Port, Port]
    """First and last port that decisions may assign to containers here; disjoint among agents on one address."""
    labels: dict[str, str] = {}
    runtime: str = "process"
    build: str = ""
    lease_s: Annotated[float, msgspec.Meta(ge=0, le=864_000)] = 0.0
    """Longest lease the node may still honor, in seconds: longer than the cluster's lease if that was lowered."""
    identity: Identity = ""
    """A join under a name that another identity holds changes nothing but `Node.refused`."""
    checkpoints: FolderId = ""
    """Id of the mounted folder of checkpoints, or NO_FOLDER; "" from an agent that does not check."""


class ContainerUse(msgspec.Struct, frozen=True, gc=False):
    """What one container used: CPU seconds since its start, bytes resident now."""

    app: Name
    generation: Number
    slot: Slot
    cpu_s: Seconds
    memory: Amount


class NodeReported(Event, frozen=True):
    """A heartbeat with resource usage; on a stream of its own, with an age limit."""

    node: Name
    used: dict[str, Amount] = {}
    containers: list[ContainerUse] = []
    identity: Identity = ""


class NodeLeft(Event, frozen=True):
    """An agent stopped cleanly: none of its containers runs."""

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
"""The message of a container that was stopped because its node's lease expired."""


class ContainerExited(Event, frozen=True):
    """A container ended, or could not start (then `exit_code` is None and `message` says why)."""

    app: Name
    generation: Number
    slot: Slot
    node: Name
    exit_code: ExitCode | None = None
    asked: bool = False
    """Whether the agent had asked the container to stop before it ended."""
    killed: bool = False
    """Whether it outlived its grace time and was killed: work after its last checkpoint is lost."""
    reason: ExitReason = "exit"
    message: str = ""
    started_at: Moment = 0
    exited_at: Moment = 0
    identity: Identity = ""


class AppCheckpointed(Event, frozen=True):
    """The app reported, in its progress file, that it saved its state up to this step."""

    app: Name
    generation: Number
    step: Step


class AppProgressed(Event, frozen=True):
    """Progress that the app reported in its progress file, at a limited rate."""

    app: Name
    generation: Number
    step: Step
    loss: float | None = None
    samples_per_s: float | None = None


# --- master ------------------------------------------------------------------------------------------------------------


class AppAccepted(Event, frozen=True):
    """The app is admitted.  Carries the checked spec, which is all that agents know of an app."""

    app: Name
    spec: AppSpec
    submission: Name
    """Id of the AppSubmitted."""


class AppRejected(Event, frozen=True):
    """A submission or an update is refused, and why.  `app` is empty if there was no usable name."""

    app: Name
    submission: Name
    reason: str
    refused: Literal["submission", "update"] = "submission"
    code: str = ""
    """The reason's stable code, such as `spec.demand.too_large`; "" in logs of earlier versions."""


class AppCompleted(Event, frozen=True):
    """All slots of the generation ended with exit code 0, without a request to stop."""

    app: Name
    generation: Number


Failure = Literal[
    "", "exit", "out_of_memory", "image", "command", "spec", "device", "port", "checkpoints", "lost", "unknown",
    "start", "stalled", "stopped",
]  # fmt: skip
"""Why a generation failed: why its first container ended; or it had not started, or showed no work, by its deadline; or it
was stopped without an order.  "" in logs of earlier versions."""


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
    """A generation can't continue: agents stop the rest of it, and the app waits until `retry_at`."""

    app: Name
    generation: Number
    reason: str
    counted: bool = True
    """Whether it uses up one of the app's retries; a lost node or a taken port is not the app's fault."""
    port: bool = False
    """Whether a port was taken."""
    failure: Failure = ""
    retries: Number = 0
    """How many retries the app has used of the limit that this failure counts against, including the next one."""
    limit: Number = 0
    """That limit."""
    anew: bool = False
    """It had worked for long enough (`retries.reset` of its spec) that its earlier failures are forgotten."""
    retry_at: Moment = 0
    """UTC ns before which it is not placed again."""


class NodeLost(Event, frozen=True):
    """A node is silent for longer than the grace time: no new containers go there; those running may still run."""

    node: Name
    last_heard: Moment


class NodeRecovered(Event, frozen=True):
    node: Name


class NodeLeaseEnded(Event, frozen=True):
    """A node is silent for so long that its agent has surely stopped all containers by itself."""

    node: Name
    last_heard: Moment


class GenerationReleased(Event, frozen=True):
    """The generation may start: every container of earlier generations has ended and the room is free."""

    app: Name
    generation: Number
    previous: Number = 0
    """The generation that it replaces, 0 for a first start."""
    resume: bool = False
    """Whether the app has a checkpoint that is believed, so the resume command starts it."""
    checkpoint: Step | None = None
    """The step of that checkpoint."""
    lost_steps: Step = 0
    """Steps done after that checkpoint, which are repeated."""
    killed: Number = 0
    """How many containers of the previous generation were killed because they outlived their grace time."""
    stop_s: Seconds = 0.0
    """Seconds from the decision until the last container of the previous generation had ended."""
    wait_s: Seconds = 0.0
    """Seconds from then until this release: waiting for room."""
    lease_ended: list[str] = []
    """Nodes where the previous generation ended by the node's lease, not by its containers' exits."""
    checkpoints: FolderId = ""
    """Id of the cluster's checkpoint folder: a node starts these containers only where that folder is mounted."""


class Placed(msgspec.Struct, frozen=True, gc=False):
    """One slot of a generation: its container's node, and the address at which its peers find it."""

    slot: Slot
    node: Name
    address: Address
    port: PortOrNone


Adjustment = Literal["start", "restart", "stop"]


class Resize(msgspec.Struct, frozen=True, gc=False):
    """One app's adjustment from one generation to the next.  An empty placement means that it has to wait."""

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
    """The allocation was looked at again though nothing had happened for a while; first in its round.

    Each decision changes only a few apps (θ2), so after departures, or where a solver stopped at a limit, another look may
    improve the allocation.  The changes, if any, are in a `Resized` of the same round.  A tick without changes is the last
    one until there is a new cause, so an idle log does not grow.  Policy, solver, status and digest as in `Resized`."""

    policy: str
    policy_version: Number
    solver: str
    status: str
    digest: str


Trigger = Literal["events", "idle", "deadline"]


class Resized(Event, frozen=True):
    """One decision: all resizes of a round, and everything needed to explain them."""

    policy: str
    policy_version: Number
    params: dict[str, Any]
    solver: str
    """Library and version that solved it: if they differ, a replay reports `not checked`."""
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
    """Digest of the state at `basis` from which this was decided."""
    change_cost: Figure = 0.0
    """The price of its changes, in units of the utilization: `utilization - change_cost` was maximised."""
    shortage: dict[str, Number] = {}
    """How many containers are missing for each app that waits for n_min."""
    trigger: Trigger = "events"
    """Why it was decided: an event, a quiet period (`IdleTicked`), or the end of a pause or of an app's patience."""
    unsaid: Number = 0
    """How many apps that wait or are below n_max have no reason here because the message had no room
    (`dorm.core.round_size`)."""
    put_off: Number = 0
    """How many changes of this allocation did not fit.  The figures include them, and the next decision follows at once."""


class MasterElected(Event, frozen=True):
    """A master took over: decisions of lower epochs are void."""

    epoch: Number
    build: str = ""
    key: str = ""
    """The public key of its seals (`LogSealed`), empty if it makes none."""


class LogSealed(Event, frozen=True):
    """The log's hash chain (`events.chain.hash_chain`) as this master read it, signed with its key.  After that, no one
    without the key can change, remove or move a record at or before `upto` and still show a valid seal.  Alone in its round.
    A seal is a record, so the next one covers it."""

    upto: Sequence
    """The last record covered: the basis of its round."""
    chain: str
    """The chain after that record: 64 hex digits."""
    key: str
    """The public key that verifies the seal: an nkey."""
    signature: str
    """Signature of `events.chain.seals.statement`: 128 hex digits."""
    after: Sequence = 0
    """Marks cover records after this one: the end of the previous seal, as far as this master knew."""
    every: Annotated[int, msgspec.Meta(ge=1, le=2**62)] = 1
    marks: str = ""
    """The first 16 hex digits of the chain after each record whose sequence is a multiple of `every`, from `after` to `upto`.
    They locate damage."""


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
    """Stands for a record that can't be decoded: the fold skips and counts it.  Never published."""

    subject: str
    reason: str


class Unknown(Event, frozen=True, tag="Unknown"):
    """Stands for a kind, or a version of one, that this build does not know.  Never published."""

    subject: str
    name: str


class Round(Event, frozen=True):
    """All that the master writes at once: one message, stored whole or not at all.  A fact's position is `seq.index`."""

    epoch: Number
    basis: Sequence
    """The sequence up to which the log was folded when this was decided."""
    allocated: bool
    """Whether the allocation was recomputed (after the quiet time), so that an audit asks the same question."""
    events: list[MasterFact | Unknown]
    """`Unknown` stands in for a fact that this build does not know, so that positions stay the same."""
    core: Number = 0
    """Version of the core that decided it (`dorm.core.state.SCHEMA`); an audit does not repeat decisions of another one."""


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
