"""What members send each other.  `payload` is sent as raw arrays, everything else as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from dorm.elastic.errors import PeerError

if TYPE_CHECKING:
    import numpy.typing as npt

    Arrays = list[npt.NDArray[Any]]

__all__ = [
    "Bye",
    "Cancel",
    "ChunkValue",
    "Contribution",
    "Go",
    "Message",
    "Ready",
    "Received",
    "Recover",
    "Result",
    "State",
    "Status",
    "Switch",
    "Warm",
    "decode",
    "encode",
]


@dataclass
class Message:
    """Root.  `view` is the number of the view that it belongs to."""

    view: int
    payload: Arrays = field(default_factory=list, repr=False)
    kinds: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        Message.kinds[cls.__name__] = cls


@dataclass
class Contribution(Message):
    """A member's part of a sum; `payload` holds the arrays of its nodes one after the other."""

    step: int = 0
    round: int = 0
    nodes: list[list[int]] = field(default_factory=list)
    """The nodes of `summing` that it sends, each [low, high]."""
    used: list[int] = field(default_factory=list)
    """The sender's samples of this step: count and lanes of the ledger."""
    seconds: float = 0.0
    """Time that it computed for its samples."""
    stop: bool = False
    """Whether it was asked to stop (SIGTERM)."""


@dataclass
class Result(Message):
    """The sum, for all members; after a barrier every member waits for Go before its next step."""

    step: int = 0
    round: int = 0
    used: list[int] = field(default_factory=list)
    barrier: bool = False
    stop: bool = False


@dataclass
class Ready(Message):
    """This member waits before `step`."""

    step: int = 0


@dataclass
class Go(Message):
    """Continue with `step`, in this view."""

    step: int = 0
    cause: str = ""
    """Why the view changed, "" if it did not."""
    warm_up_s: float = 0.0
    barrier_s: float = 0.0
    bytes_moved: int = 0


@dataclass
class State(Message):
    """The state before `step`: `structure` and the arrays of `values.pack`.  A first one is for warming up only."""

    step: int = 0
    used: list[int] = field(default_factory=list)
    """The ledger of the epoch so far."""
    first: bool = True
    structure: Any = None
    membership: int = 0
    kept: list[int] = field(default_factory=list)
    """Positions of arrays that are as in the first state, which the receiver holds; `payload` has the others in order."""


@dataclass
class Warm(Message):
    """This newcomer has loaded a first state and warmed up."""

    membership: int = 0
    seconds: float = 0.0
    holds: int = -1
    """The step of the first state that it holds from the receiver, -1 if it has none."""


@dataclass
class Switch(Message):
    """The next view, once all have sent Received."""

    membership: int = 0
    members: list[int] = field(default_factory=list)
    old_members: list[int] = field(default_factory=list)
    """Members of the view before: newcomers learn the participants of the switch."""
    owners: list[int] = field(default_factory=list)
    old_owners: list[int] = field(default_factory=list)
    step: int = 0
    used: list[int] = field(default_factory=list)
    """The ledger of the epoch so far."""
    dead: list[int] = field(default_factory=list)
    """Those that have died so far: to newcomers, a later report of a death would be news of all of them."""


@dataclass
class ChunkValue(Message):
    """The value of a chunk, for its new owner."""

    chunk: int = 0
    structure: Any = None


@dataclass
class Received(Message):
    """This member has everything that it needs for the view; `bytes` is its size."""

    bytes: int = 0


@dataclass
class Cancel(Message):
    """The view is cancelled: a newcomer was lost."""


@dataclass
class Status(Message):
    """A survivor's position; `view` is the one that it has adopted (0: none)."""

    prepared: int = 0
    """The number of the view that it has prepared for, 0 if none."""
    step: int = 0
    round: int = 0
    begun: bool = False
    """Whether its script is inside the step."""
    dead: list[int] = field(default_factory=list)
    awaited: list[int] = field(default_factory=list)
    """The members and newcomers whose reports the sender waits for."""


@dataclass
class Recover(Message):
    """The view of the survivors.  `step` and `round` are how far the furthest of them is."""

    base: int = 0
    """The view that it follows."""
    membership: int = 0
    members: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    """Chunks whose values died with their owners."""
    dead: list[int] = field(default_factory=list)
    step: int = 0
    round: int = 0
    holder: int = -1
    """A member that has the last result, for those that are behind."""
    behind: list[int] = field(default_factory=list)


@dataclass
class Bye(Message):
    """This member ends gracefully, before `step`; `view` is the last one that it knows to be adopted."""

    step: int = 0
    finished: bool = False
    """Whether the job is complete, so that no member has to join it any more."""


def encode(message: Message) -> tuple[dict[str, Any], Arrays]:
    """Return the message as JSON and arrays."""
    header = {f.name: getattr(message, f.name) for f in fields(message) if f.name != "payload"}
    return {"kind": type(message).__name__, **header}, message.payload


def decode(header: dict[str, Any], payload: Arrays) -> Message:
    """Return the message.  Raises PeerError for an unknown message; unknown fields are ignored."""
    kind = Message.kinds.get(str(header.get("kind")))
    if kind is None:
        raise PeerError(f"a peer sent a message of unknown kind {header.get('kind')!r}", code="elastic.peer.kind")
    known = {f.name: f for f in fields(kind) if f.name != "payload"}
    values = {name: header[name] for name in known if name in header}
    template = asdict(kind(view=0))
    for name, value in values.items():
        wanted = type(template[name])
        if wanted is not type(None) and not isinstance(value, (wanted, int) if wanted is float else wanted):
            raise PeerError(f"a peer sent {kind.__name__}.{name} = {value!r:.40}", code="elastic.peer.field")
    if not isinstance(values.get("view"), int):
        raise PeerError(f"a peer sent a {kind.__name__} without a view", code="elastic.peer.field")
    return kind(payload=payload, **values)
