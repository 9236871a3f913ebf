"""The verbs of both clients, each written once, as steps without I/O.

A verb is a generator.  It yields the next step (`Open`, `Read`, `Pause`) and is sent what came of it; where the connection
fails, `wire.Broken` is thrown in.  It returns its answer (`One`), or yields `Found` for each thing that it finds (`Each`).
`client` performs the steps in ordinary code and `aio` awaits them; neither knows what a verb does.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dorm.remote import wire
from dorm.remote.answers import App, Event, Node, Stored, Submitted
from dorm.remote.asks import Ask, path_of, sending
from dorm.remote.errors import Problem, Unreachable, problem

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from typing import Union

    Step = Union["Open", "Read", "Pause"]

T = TypeVar("T")
if TYPE_CHECKING:
    One = Generator[Step, Any, T]
    Each = Generator[Union[Step, "Found[T]"], Any, None]

_MOST_PAUSE_S = 10.0
_ENDS = ("AppCompleted", "AppFailed", "AppCancelled")


@dataclass(frozen=True)
class Open:
    """Send a request, on a connection of its own in the place of the one before; sent: the answer's `wire.Head`."""

    ask: Ask[Any]
    silence_s: float | None = None
    """How long the answer may be silent; None for the client's own timeout."""


@dataclass(frozen=True)
class Read:
    """Read on in the answer's body; sent: the next bytes, b"" at its end."""


@dataclass(frozen=True)
class Pause:
    """Wait, without a connection; sent: None."""

    seconds: float


@dataclass(frozen=True)
class Found(Generic[T]):
    """Something that the verb was asked for; sent: None."""

    item: T


# --- asking -------------------------------------------------------------------------------------------------------------


def submit(spec: Mapping[str, Any] | str, *, key: str | None = None) -> One[Submitted]:
    """Submit a spec, a document or YAML.  A repeat with the same `key` is the same app.  Raises Refused, Unsettled."""
    # Without a key of the caller's it gets one, so that what is sent again after an outage is the same app.
    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    if isinstance(spec, str):
        yaml = {**headers, "Content-Type": "application/yaml"}
        return _done(Ask("POST", path_of("apps"), Submitted.of, spec.encode(), yaml))
    return _done(sending("POST", path_of("apps"), dict(spec), Submitted.of, headers=headers))


def app(name_or_id: str, *, at: str | None = None, min_seq: str | None = None) -> One[App]:
    """Return an app, now or at a moment.  Raises NotFound."""
    return _done(Ask("GET", path_of("apps", name_or_id, at=at, min_seq=min_seq), App.of))


def apps(*, ended: bool = False, at: str | None = None) -> Each[App]:
    """Yield apps by submission."""
    after: str | None = "0"
    while after is not None:
        page = yield from _done(Ask("GET", path_of("apps", after=after, ended=ended, at=at, limit=500), _whole))
        for one in page["items"]:
            yield Found(App.of(one))
        after = page["next"]


def nodes(*, at: str | None = None) -> Each[Node]:
    """Yield nodes by name."""
    after: str | None = ""
    while after is not None:
        page = yield from _done(Ask("GET", path_of("nodes", after=after, at=at, limit=500), _whole))
        for one in page["items"]:
            yield Found(Node.of(one))
        after = page["next"]


def update(app: str, *, weight: float | None = None, n_min: int | None = None, n_max: int | None = None) -> One[Stored]:
    """Change weight or bounds.  Raises NotFound, Refused."""
    change = {"weight": weight, "n_min": n_min, "n_max": n_max}
    given = {name: value for name, value in change.items() if value is not None}
    return _done(sending("PATCH", path_of("apps", app), given, Stored.of))


def cancel(app: str, reason: str = "") -> One[Stored]:
    """Request the app's end.  Raises NotFound, Refused."""
    return _done(sending("POST", path_of("apps", app, "cancel"), {"reason": reason}, Stored.of, repeatable=False))


def kill(app: str, reason: str = "") -> One[Stored]:
    """End an app at once, without a checkpoint and without its grace time.  Raises NotFound, Refused, and as `submit` does."""
    return _done(sending("POST", path_of("apps", app, "kill"), {"reason": reason}, Stored.of, repeatable=False))


def drain(node: str, *, on: bool = True, reason: str = "") -> One[Stored]:
    """Empty a node, or use it again.  Raises NotFound."""
    path = path_of("nodes", node, "drain" if on else "undrain")
    return _done(sending("POST", path, {"reason": reason}, Stored.of))


def plan(**assumed: Any) -> One[dict[str, Any]]:
    """Return what the next decision would be, if something happened first (`submit`, `cancel`, `drain`, `policy`)."""
    return _done(sending("POST", path_of("plan"), assumed, dict))


def get(path: str, **query: Any) -> One[Any]:
    """Return anything that can be read: `get("apps/digits/story")`, `get("state", at="-10m")`."""
    return _done(Ask("GET", path_of(*path.strip("/").split("/"), **query), _whole))


def wait(name_or_id: str, *, min_seq: str | None = None) -> One[App]:
    """Wait until the app has ended, and return it.  Raises NotFound."""
    found = yield from app(name_or_id, min_seq=min_seq)
    position = str(found.document.get("position", "0"))
    while not found.ended:
        event = yield from _first(events(after=position, app=[found.id], kind=_ENDS))
        position = event.position
        found = yield from app(found.id, min_seq=position.partition(".")[0])
    return found


def logs(
    app: str, *, slot: int | None = None, tail: int | None = None, since: str | None = None, timestamps: bool = False
) -> Each[bytes]:
    """Yield what a container has written so far, since a moment (`-10m`, `14:05`, a time; UTC), and with `timestamps` whole
    lines with their times before them.  Raises NotFound, Refused."""
    wanted = {"slot": slot, "tail": tail, "since": since, "timestamps": "true" if timestamps else None}
    try:
        yield from _opened(Open(Ask("GET", path_of("apps", app, "logs", **wanted), _whole)))
        while piece := (yield Read()):
            yield Found(piece)
    except wire.Broken as error:
        raise Unreachable(str(error)) from None


# --- following ----------------------------------------------------------------------------------------------------------


def events(
    *,
    after: str | None = None,
    app: Sequence[str] = (),
    node: Sequence[str] = (),
    user: Sequence[str] = (),
    kind: Sequence[str] = (),
) -> Each[Event]:
    """Yield each event once and in order, from a position or from now on, without end, through outages.  Raises Problem where
    the request itself is refused."""
    failures = 0
    while True:
        path = path_of("events", "stream", after=after, app=app, node=node, user=user, kind=kind)
        try:
            ask = Ask("GET", path, _whole, headers={"Accept": "text/event-stream"})
            head = yield from _opened(Open(ask, wire.SILENCE_S))
            after = after or head.headers.get("dorm-position")
            frames = wire.Frames()
            while piece := (yield Read()):
                for id, event, data in frames.feed(piece):
                    if event == "event":
                        failures = 0
                        after = id
                        yield Found(Event.of(json.loads(data)))
        except Problem as error:
            if error.status not in wire.BUSY:
                raise
        except wire.Broken:
            pass
        failures += 1
        yield Pause(min(wire.PAUSE_S * failures, _MOST_PAUSE_S))


# --- what verbs are made of ---------------------------------------------------------------------------------------------


def _whole(document: Any) -> Any:
    return document


def _done(ask: Ask[T]) -> One[T]:
    """Send a request, again where that helps and does no harm, and return the answer.  Raises Problem, Unreachable."""
    for left in range(wire.TRIES - 1, -1, -1):
        try:
            head = yield Open(ask)
            body = yield from _body()
        except wire.Broken as error:
            if not left or not ask.repeatable:
                raise Unreachable(str(error)) from None
        else:
            document = wire.settled(head.status, body, left, ask.repeatable)
            if document is not wire.AGAIN:
                return ask.read(document)
        yield Pause(wire.PAUSE_S)
    raise AssertionError("the last try returns or raises")


def _body() -> One[bytes]:
    pieces = []
    while piece := (yield Read()):
        pieces.append(piece)
    return b"".join(pieces)


def _opened(opening: Open) -> One[wire.Head]:
    """Open, and return the head of an answer whose body is read piece by piece.  Raises Problem."""
    head: wire.Head = yield opening
    if head.status >= 400:
        raise problem(head.status, wire.document_of((yield from _body())))
    return head


def _first(steps: Each[T]) -> One[T]:
    """Return the first thing that a verb finds, and end it there."""
    send, value = steps.send, None
    try:
        while True:
            step = send(value)
            if isinstance(step, Found):
                return step.item
            try:
                send, value = steps.send, (yield step)
            except wire.Broken as error:
                send, value = steps.throw, error
    finally:
        steps.close()


def whole(steps: One[T]) -> Each[T]:
    """Return a verb with one answer as one that finds it."""
    yield Found((yield from steps))
