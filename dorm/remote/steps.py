"""Steps of verbs, and helpers for all verbs.

A verb is a generator.  It yields the next step (`Open`, `Read`, `Pause`) and is sent the result; if the connection fails,
`wire.Broken` is thrown in.  It returns its answer (`One`), or yields `Found` for each thing that it finds (`Each`). `client`
performs the steps in ordinary code and `aio` awaits them; neither knows what a verb does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar

from dorm.remote import wire
from dorm.remote.asks import Ask, path_of
from dorm.remote.errors import Unreachable, problem

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Union

    Step = Union["Open", "Read", "Pause"]

T = TypeVar("T")
_PAGE = 500
if TYPE_CHECKING:
    One = Generator[Step, Any, T]
    Each = Generator[Union[Step, "Found[T]"], Any, None]


@dataclass(frozen=True)
class Open:
    """Send a request, on a new connection that replaces the previous one; sent: the answer's `wire.Head`."""

    ask: Ask[Any]
    silence_s: float | None = None
    """Seconds for which the answer may be silent; None for the client's own timeout."""


@dataclass(frozen=True)
class Read:
    """Read on in the answer's body; sent: the next bytes, b"" at its end."""


@dataclass(frozen=True)
class Pause:
    """Wait, without a connection; sent: None."""

    seconds: float


@dataclass(frozen=True)
class Found(Generic[T]):
    """Something that the verb found; sent: None."""

    item: T


def as_it_is(document: Any) -> Any:
    return document


def done(ask: Ask[T], silence_s: float | None = None) -> One[T]:
    """Send a request, again if that helps and does no harm, and return the answer, which may be silent for so many seconds.
    Raises Problem, Unreachable."""
    for left in range(wire.TRIES - 1, -1, -1):
        try:
            head = yield Open(ask, silence_s)
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


def opened(opening: Open) -> One[wire.Head]:
    """Open, and return the head of an answer whose body is read piece by piece.  Raises Problem."""
    head: wire.Head = yield opening
    if head.status >= 400:
        raise problem(head.status, wire.document_of((yield from _body())))
    return head


def first(steps: Each[T]) -> One[T]:
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
    """Turn a verb with one answer into one that finds it."""
    yield Found((yield from steps))


def listed(
    read: Callable[[Any], T], *path: str, after: str | None = None, silence_s: float | None = None, **query: Any
) -> Each[T]:
    """Yield the items of a list, page by page."""
    while True:
        ask = Ask("GET", path_of(*path, after=after, limit=_PAGE, **query), as_it_is)
        page = yield from done(ask, silence_s)
        for item in page["items"]:
            yield Found(read(item))
        after = page["next"]
        if after is None:
            return
