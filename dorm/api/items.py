"""Events as the API shows them, in lists and on streams alike."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from events import subjects
from events.cloudevents import plain, rfc3339
from events.kinds import AppSubmitted
from replay.gist import gist

if TYPE_CHECKING:
    from events.positions import Logged, Position


class EventItem(msgspec.Struct, frozen=True):
    """One event of the log."""

    position: str
    """Its place in the log: `seq`, or `seq.index` for a fact of a master's round."""
    at: str
    """Log time."""
    kind: str
    by: str
    """Who published it."""
    cause: str
    """The position or id of what led to it; "" if it does not say."""
    app: str | None
    """The id (in some requests the name) of the app that it names."""
    node: str | None
    """The node that it names."""
    text: str
    """The gist, in one line."""
    body: dict[str, Any]
    """The event itself, with its `kind`."""


def item_of(logged: Logged) -> EventItem:
    event = logged.event
    named: Any = event
    by = event.by or (logged.round.by if logged.round is not None else "") or subjects.who_of(logged.subject)
    if logged.round is None:
        by = subjects.author_of(logged.subject, by)
    return EventItem(
        position=str(logged.position),
        at=rfc3339(logged.time),
        kind=type(event).__name__,
        by=by,
        cause=event.cause,
        app=None if isinstance(event, AppSubmitted) else _name(getattr(named, "app", None)),
        node=_name(getattr(named, "node", None)),
        text=gist(event),
        body=plain(event),
    )


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


_encoder = msgspec.json.Encoder()
_ROOM = 8 << 20
"""Bytes of events that are kept as they are sent."""


def encoded(logged: Logged) -> bytes:
    """Return any published event as JSON."""
    item = item_of(logged)
    try:
        return _encoder.encode(item)
    except (TypeError, ValueError, RecursionError, UnicodeError):
        return _encoder.encode(msgspec.structs.replace(item, body={"kind": item.kind}, text=ascii(item.text)))


class Encoded:
    """Events as they are sent, the latest that were asked for: lists of the newest events overlap."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Position, bytes] = OrderedDict()
        self._bytes = 0

    def of(self, logged: Logged) -> bytes:
        found = self._kept.get(logged.position)
        if found is None:
            found = self._kept[logged.position] = encoded(logged)
            self._bytes += len(found)
            while self._bytes > _ROOM and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return found

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0
