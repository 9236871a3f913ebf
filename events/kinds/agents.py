"""What agents publish: facts about nodes, containers and the work in them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from events.fields import AppId, CoreWord, FreeText, Label, LabelValue, NodeId, Own, ResourceKey, holds
from events.kinds.base import Address, Amount, Event, ExitCode, FolderId, Identity, Kind, Port, Step
from events.kinds.offers import NodeOffers
from events.limits import Moment, Number, Seconds, Slot

Duration = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""Seconds that a program measured."""
Digest = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?$"), holds("digest")]
Ability = Annotated[str, msgspec.Meta(max_length=64)]
Members = Annotated[list[Slot], msgspec.Meta(max_length=4096)]
"""Slots, ascending."""


class NodeJoined(Event, frozen=True):
    """An agent has started on this node and states what the node has."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="joins", on="node", shown=True, lists=("news", "nodes"))

    node: NodeId
    address: Address
    """The address at which other nodes reach this node's containers."""
    capacity: dict[ResourceKey, Amount]
    ports: tuple[Port, Port]
    """First and last port that decisions may assign to containers here; disjoint among agents on one address."""
    labels: dict[Label, LabelValue] = {}
    runtime: Annotated[str, holds("runtime")] = "process"
    build: Own = ""
    lease_s: Annotated[float, msgspec.Meta(ge=0, le=864_000)] = 0.0
    """Longest lease the node may still honor, in seconds: longer than the cluster's lease if that was lowered."""
    identity: Identity = ""
    """A join under a name that another identity holds changes nothing but `Node.refused`."""
    checkpoints: FolderId = ""
    """Id of the mounted folder of checkpoints, or NO_FOLDER; "" from an agent that does not check."""
    prepares: bool = False
    """Whether this agent reports `ContainersPrepared`; False from agents before 0.6.0."""
    abilities: Annotated[list[Ability], msgspec.Meta(max_length=64), holds("abilities")] = []
    """Abilities of this agent that earlier agents lack (`events.spec.abilities`)."""
    offers: NodeOffers | None = None
    """Offers of this node to apps beyond resources; None from agents that offer nothing, and from those before 0.6.0."""
    process: Identity = ""
    """Drawn by each process of an agent; "" from agents before 0.6.0."""


class ContainerUse(msgspec.Struct, frozen=True, gc=False):
    """What one container used: CPU seconds since its start, bytes resident now."""

    app: AppId
    generation: Number
    slot: Slot
    cpu_s: Seconds
    memory: Amount


class ContainerUsed(msgspec.Struct, frozen=True, gc=False):
    """What a container used from its start until it was last looked at, which is at most a heartbeat before its end."""

    cpu_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    """CPU seconds of all its processes."""
    memory: Amount
    """Bytes resident, as the mean over the time that it was looked at."""
    over_s: Duration
    """Seconds from its start to that last look."""


class NodeReported(Event, frozen=True):
    """A heartbeat with resource usage; on a stream of its own, with an age limit."""

    KIND: ClassVar[Kind] = Kind(
        writers=("node",), rule="of_node", on="node", folded=False, stored="reports", lists=("noise",)
    )

    node: NodeId
    used: dict[ResourceKey, Amount] = {}
    containers: list[ContainerUse] = []
    identity: Identity = ""


class NodeLeft(Event, frozen=True):
    """An agent stopped cleanly: none of its containers runs."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_node", on="node", shown=True, lists=("news", "nodes"))

    node: NodeId
    identity: Identity = ""
    process: Identity = ""
    """The process that stopped. The event has no effect if another process of the node has joined since
    (`events.identities.ends`)."""


MOST_DOUBTED = 8
"""Files that one event names."""
LONGEST_DOUBTED = 200
"""Characters to which their paths are cut."""


class Doubt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Files of an app's checkpoint that changed after the app had last reported one, so they may be incomplete
    (`agents.outputs.checkpoints`)."""

    files: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=LONGEST_DOUBTED), holds("text")]],
        msgspec.Meta(max_length=MOST_DOUBTED),
    ] = []
    """Paths in the app's folder; a folder whose whole content is new ends with `/`."""
    more: Number = 0
    """Number of files that are not named."""
    before: bool = False
    """Whether earlier ones are there, complete and under names of their own, so that the doubtful ones can be set
    aside."""
    aside: Annotated[str, msgspec.Meta(max_length=LONGEST_DOUBTED), holds("text")] = ""
    """Folder within the app's folder to which they were moved before the container started; "" if they are in their place."""


class ContainerStarted(Event, frozen=True):
    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_node", on="app", shown=True, lists=("containers",))

    app: AppId
    generation: Number
    slot: Slot
    node: NodeId
    started_at: Moment = 0
    identity: Identity = ""
    environment_s: Duration = 0.0
    """Seconds in which the container built its app's environment or waited for it; it counts as started only after that."""
    origin_digest: Digest = ""
    """SHA-256 of the files copied from another app's checkpoint (`from` in its spec), over a list of their paths, modes and
    contents (`agents.outputs.checkpoints`). "" if the node does not know it."""
    doubt: Doubt | None = None
    """Doubtful files that the node of the lowest slot found in the app's folder before the generation started, with no
    container of an earlier one left."""


class ContainersPrepared(Event, frozen=True):
    """This node has prepared a generation that is not released yet: its image is present, and its containers are
    created but not started. Containers that could not be prepared are created at the release."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_node", on="app", shown=True, lists=("containers",))

    app: AppId
    generation: Number
    node: NodeId
    created: Number = 0
    """Number of its containers that are created on this node."""
    reason: FreeText = ""
    """Why some are not created."""
    identity: Identity = ""


Doing = Literal["prepare", "fetch", "pull", "create", "start", "read", "tell", "stop", "remove", "report"]
"""Steps of a node for a container: make its folders and environment ready, fetch its project folder, pull its image, create
it, start it, read its app's checkpoints, tell it of its members, stop it, remove it, report it."""


class ContainerDelayed(Event, frozen=True):
    """A node does the same for a container again and again, because it fails or takes long. Stated once it has lasted for
    seconds, again when the reason changes, and when it is over; the start or the end of the container ends it as well."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_node", on="app", lists=("containers",))

    app: AppId
    generation: Number
    slot: Slot
    node: NodeId
    doing: Doing = "start"
    reason: FreeText = ""
    """Message of the engine, the operating system or the servers."""
    code: CoreWord = ""
    """The error's stable code."""
    for_s: Duration = 0.0
    """Time that it has taken already."""
    failing: bool = True
    """False if it only takes long, such as a pull that makes progress: then no failure follows from it."""
    over: bool = False
    """Whether it worked now, or is no longer tried."""
    identity: Identity = ""


ExitReason = Literal[
    "exit", "out_of_memory", "image", "command", "spec", "device", "port", "checkpoints", "start", "lost", "unknown"
]
"""`start`: its node could not start it, for a reason of its own, for as long as it may try; `message` says what the engine or
the operating system said."""


CUT_OFF = "the node was cut off from the log for longer than its lease"
"""The message of a container that was stopped because its node's lease expired."""


class ContainerExited(Event, frozen=True):
    """A container ended, or could not start (then `exit_code` is None and `message` says why)."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_node", on="app", shown=True, lists=("containers",))

    app: AppId
    generation: Number
    slot: Slot
    node: NodeId
    exit_code: ExitCode | None = None
    asked: bool = False
    """Whether the agent had asked the container to stop before it ended."""
    killed: bool = False
    """Whether it outlived its grace time and was killed: work after its last checkpoint is lost."""
    reason: ExitReason = "exit"
    message: FreeText = ""
    started_at: Moment = 0
    exited_at: Moment = 0
    identity: Identity = ""
    usage: ContainerUsed | None = None
    """None if the engine did not report it, for a container that ended before a heartbeat, and from agents before
    0.6."""
    origin_digest: Digest = ""
    """Same as in `ContainerStarted`, which is missing for a container that ends immediately."""
    doubt: Doubt | None = None
    """Doubtful files that its node found in the app's folder after the container had ended without being done."""
    peer_lost: bool = False
    """Whether its last output says that it lost the connection to another container, whose end may explain this one."""


LossIs = Literal["", "nan", "inf", "-inf"]
"""A loss that is not a finite number: the training diverges."""


class AppCheckpointed(Event, frozen=True):
    """The app reported, in its progress file, that it saved its state up to this step."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_app", on="app", shown=True, lists=("noise",))

    app: AppId
    generation: Number
    step: Step


class AppProgressed(Event, frozen=True):
    """Progress that the app reported in its progress file, at a limited rate.

    The log has the first report of each generation and membership, the last one before a container's end, and marks in
    between: after seconds at first, then one a minute.  The reports between two marks are on the stream of progress."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_app", on="app", shown=True, lists=("noise",))

    app: AppId
    generation: Number
    step: Step
    loss: float | None = None
    loss_is: LossIs = ""
    """The loss, if it is not a finite number; `loss` is then None."""
    samples_per_s: float | None = None
    noise: float | None = None
    """The gradient noise scale, in samples (arXiv 1812.06162), of an app that accepts a range of batch sizes."""


LONGEST_EXAMPLE = 200
"""Characters to which a shown line is cut."""


class ProgressLinesSkipped(Event, frozen=True):
    """Lines of a container's progress file that could not be used: a mistake in the app, or in how it writes them."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_app", on="app")

    app: AppId
    generation: Number
    slot: Slot
    lines: Number
    """Number of such lines so far."""
    example: Annotated[str, msgspec.Meta(max_length=LONGEST_EXAMPLE), holds("text")] = ""
    """The first such line, shortened."""
    reason: FreeText = ""
    """Why that line could not be used, and what would be valid."""


class AppResizeRequested(Event, frozen=True):
    """The app reported, in its progress file, that it gains nothing from more than this many containers.  A hint: it only
    lowers what the app may get, within its n_min and n_max, until the app withdraws it."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_app", on="app", shown=True, lists=("news",))

    app: AppId
    generation: Number
    containers: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    """0 withdraws the request."""
    reason: FreeText = ""
    """The app's own words."""


class MembershipChanged(Event, frozen=True):
    """The leader of a live app (its lowest slot) reports that a membership trains: the first of a generation, an
    announced one, or the rest of one after a death. This commits an announced membership."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_app", on="app", shown=True, lists=("news",))

    app: AppId
    generation: Number
    membership: Number
    step: Step
    """The first step of this membership."""
    members: Members
    change: Literal["start", "grow", "shrink", "move", "death"]
    lost: Members = []
    """Members that are gone after a death, as their peers see it."""
    repeated: bool = False
    """Whether the step in flight was repeated, after a death."""
    warm_up_s: Duration = 0.0
    """Time in which the slowest newcomer imported, connected, received state and warmed up, while the others trained."""
    barrier_s: Duration = 0.0
    """Time in which the members waited for each other at the iteration boundary."""
    pause_s: Duration = 0.0
    """Time in which no member trained, the barrier included."""
    bytes_moved: Amount = 0


MOST_RUNS = 64
"""Runs of epochs in one event."""


class EpochRun(msgspec.Struct, frozen=True, gc=False):
    """Consecutive epochs, all with the same ledger."""

    first: Number
    last: Number
    samples: Number
    ledger: Digest = ""


class EpochCompleted(Event, frozen=True):
    """The leader of a live app reports the end of an epoch of data, with those that ended since its last report."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_app", on="app", shown=True, lists=("noise",))

    app: AppId
    generation: Number
    epoch: Number
    step: Step
    samples: Number
    ledger: Digest = ""
    """Digest of which samples were used in this epoch."""
    earlier: Annotated[list[EpochRun], msgspec.Meta(max_length=MOST_RUNS)] = []
    """Earlier epochs that the agent's rate limit held back."""
    omitted: Number = 0
    """Number of epochs that were held back and left out, because their ledgers differ too much for `earlier`."""
