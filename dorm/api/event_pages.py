"""Events in pages: the log with the progress next to it, forwards from a place or backwards from one.

A place in both is a *cut*: a position of the log, and how many records of the stream of progress come with it.  Pages are
what lies between two cuts, so none loses or repeats an event, whatever the clocks of the two streams say.  As text:

    after   118.2~57   the log up to 118.2 and progress up to record 57 were read
    before  118.2~58   the log up to 118.2, and progress before record 58
    before  118.2      the log before 118.2, and the progress that was stored before it

The position of an event of progress, `118~57`, is such a text too: `after` continues behind that event, `before` ends
before it.  If the filter wants no progress, or the stream holds none, places are those of the log alone.  An event looks
the same in a page and on a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dorm.api.errors import Missing
from dorm.client.tail import EVER, Filter, Tail
from events import subjects
from events.cloudevents import plain, rfc3339
from events.kinds import AppProgressed, AppSubmitted
from events.log.interface import ReadableLog
from events.log.records import LogRefused, LogUnavailable
from events.positions import Position
from replay.gist import gist

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from dorm.api.follower import Follower, RecentLog
    from events.log.records import Record
    from events.log.stores import ReadableProgress, ReadableSnapshots
    from events.positions import Logged


# --- events as they are shown -----------------------------------------------------------------------------------------


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
        body = self._kept.get(logged.position)
        if body is None:
            body = self._kept[logged.position] = encoded(logged)
            self._bytes += len(body)
            while self._bytes > _ROOM and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return body

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0


# --- the log and the progress next to it ------------------------------------------------------------------------------


class Both(ReadableLog):
    """Of the log up to a record; its newest records come from memory."""

    def __init__(self, recent: RecentLog, follower: Follower, upto: int | None = None) -> None:
        """`upto`: the last sequence that is read, None for all that is folded."""
        self._recent = recent
        self._follower = follower
        self._upto = upto

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        upto = self._upto
        if upto is not None and after >= upto:
            return
        async with aclosing(self._recent.read(after=after, subjects=subjects, follow=follow)) as batches:
            async for batch in batches:
                if upto is None or batch[-1].seq < upto:
                    yield batch
                    continue
                if wanted := [record for record in batch if record.seq <= upto]:
                    yield wanted
                return

    async def end(self) -> int:
        end = await self._recent.end()
        return end if self._upto is None else min(end, self._upto)

    async def start(self) -> int:
        return await self._recent.start()

    async def at_time(self, time: int) -> int:
        return await self._recent.at_time(time)

    @property
    def snapshots(self) -> ReadableSnapshots:
        return self._recent.snapshots

    @property
    def progress(self) -> ReadableProgress:
        return self._follower.log.progress

    async def close(self) -> None:
        return None


# --- pages ------------------------------------------------------------------------------------------------------------

_TIME_S = 3.0
"""Seconds to search for a page; what was found by then is the page."""
_BYTES = 4 << 20
"""Most bytes of a page's items, unless one alone has more."""
_WINDOW = 500
_SPARE = 8
_WIDER = 4
_WIDEST = 64_000


class Found(NamedTuple):
    """A page."""

    items: list[msgspec.Raw]
    next: str | None
    previous: str | None
    position: str
    """The end of the log, and of the progress if the page may hold any: `after` continues from it."""


class _Seen(NamedTuple):
    """An event, between the cuts before and behind it."""

    before: Position
    event: Logged

    @property
    def behind(self) -> Position:
        position = self.event.position
        if position.beside is not None:
            return replace(self.before, beside=position.beside)
        return replace(position, beside=self.before.beside)


class EventPages:
    """Pages of one follower's log.  All methods raise what reading the log raises."""

    def __init__(self, follower: Follower, recent: RecentLog, encode: Callable[[Logged], bytes]) -> None:
        self._follower = follower
        self._recent = recent
        self._encode = encode
        self._both = Both(recent, follower)

    # --- forwards -------------------------------------------------------------------------------------------------------

    async def after(self, which: Filter, after: Position, limit: int) -> Found:
        """Return the first events after a place.  Raises Missing for one beyond the log."""
        end = Position(self._follower.seq, None, await self._progress_end(which))
        if after.seq > end.seq:
            raise Missing(f"the log ends at {end.seq}, before {after}", code="moment.after_end")
        if end.beside is None:
            after = replace(after, beside=None)
        else:
            read = after.beside if after.beside is not None else await self._read_with(after.seq)
            after = replace(after, beside=min(end.beside, read))
        tail = self._tail(which, after, end)
        page = _Page(limit, self._encode)
        more: Position | None = None
        try:
            async with asyncio.timeout(_TIME_S), aclosing(tail.events()) as events:
                async for event in events:
                    if page.take(_Seen(tail.position, event)):
                        more = page.seen[-1].behind
                        break
        except TimeoutError:
            more = tail.position
        first = page.seen[0].before if page.seen else after
        return Found(
            items=page.items,
            next=_as_after(more) if more is not None else None,
            previous=_as_before(first, page.seen[0].event.position if page.seen else after)
            if first.seq or first.beside
            else None,
            position=_as_after(end),
        )

    def _tail(self, which: Filter, after: Position, upto: Position) -> Tail:
        """Return what reads between two cuts."""
        if upto.beside is None:
            return Tail(self._recent, self._follower.cluster, which, after=after, until=upto.seq)
        return Tail(
            Both(self._recent, self._follower, upto.seq), self._follower.cluster, which, after=after, until=upto.seq,
            latest=EVER, beside_until=upto.beside,
        )  # fmt: skip

    # --- backwards ------------------------------------------------------------------------------------------------------

    async def before(self, which: Filter, before: Position | None, limit: int) -> Found:
        """Return the last events before a place, by default before the end.  Raises Missing for a place beyond the log.

        Searches backwards in windows that grow, so that the last few of a long log are found fast."""
        end = Position(self._follower.seq, None, await self._progress_end(which))
        if before is not None and before.seq > end.seq + 1:
            raise Missing(f"the log ends at {end.seq}, before {before}", code="moment.after_end")
        upto = end if before is None else await self._cut_before(before, end.beside)
        started = asyncio.get_running_loop().time()
        seen: list[_Seen] = []
        # Without a filter nearly every record is an item of the page.
        window = _WINDOW if which != Filter() else limit + _SPARE
        while len(seen) <= limit and (upto.seq or upto.beside):
            if asyncio.get_running_loop().time() - started > _TIME_S:
                break
            first = await self._window(upto, window)
            seen = [*await self._last(which, first, upto, limit), *seen][-(limit + 1) :]
            upto, window = first, min(window * _WIDER, _WIDEST)
        page = _Page(limit, self._encode)
        for event in reversed(seen[-limit:]):
            if page.take(event):
                break
        kept = page.seen[::-1]
        previous: str | None = None
        if kept and len(kept) < len(seen):
            previous = _as_before(kept[0].before, kept[0].event.position)
        elif upto.seq or upto.beside:
            previous = _as_before(upto, Position(upto.seq + 1))
        return Found(
            items=page.items[::-1],
            next=_as_after(kept[-1].behind) if kept and before is not None and before.seq <= end.seq else None,
            previous=previous,
            position=_as_after(end),
        )

    async def _last(self, which: Filter, first: Position, upto: Position, limit: int) -> list[_Seen]:
        """Return the last events between two cuts: one more than the limit, if there are enough."""
        part: list[_Seen] = []
        tail = self._tail(which, first, upto)
        async with aclosing(tail.events()) as events:
            async for event in events:
                # A round may reach beyond the cut.
                if not upto.covers(event.position):
                    continue
                part.append(_Seen(tail.position, event))
                if len(part) > 2 * limit + 2:
                    del part[: limit + 1]
        return part

    async def _window(self, upto: Position, size: int) -> Position:
        """Return a cut before another one, about this many records before it in the log and in the progress."""
        seq = max(0, upto.seq - size)
        if upto.beside is None:
            return Position(seq)
        read = min(upto.beside, await self._read_with(seq)) if seq else 0
        if upto.beside - read <= size:
            return Position(seq, None, read)
        # There is much progress in between: the window ends where this many records of it begin.
        read = upto.beside - size
        async with aclosing(self._both.progress.read(after=read)) as batches:
            batch = await anext(batches, None)
        time = batch[0].time if batch else 0
        seq = max(seq, await self._both.at_time(time))
        return Position(seq, None, read) if seq < upto.seq else replace(upto, beside=read)

    async def _cut_before(self, place: Position, end: int | None) -> Position:
        """Return the cut that a text names which a page ends before.  `end` is that of the progress, None if none is read."""
        if place.beside is not None:
            return replace(place, beside=None if end is None else min(end, max(0, place.beside - 1)))
        before = Position(place.seq, place.index - 1) if place.index else Position(max(0, place.seq - 1))
        if end is None:
            return before
        time = await self._time_of(place.seq)
        return replace(before, beside=min(end, await self._both.progress.at_time(time - 1)) if time else end)

    # --- progress -------------------------------------------------------------------------------------------------------

    async def _progress_end(self, which: Filter) -> int | None:
        """Return the end of the stream of progress; None if none of it is wanted, or can be read."""
        if which.kinds and AppProgressed.__name__ not in which.kinds:
            return None
        with contextlib.suppress(LogRefused, LogUnavailable):
            return await self._both.progress.end() or None
        return None

    async def _read_with(self, seq: int) -> int:
        """Return how far the progress was when a record of the log was stored."""
        time = await self._time_of(seq)
        return await self._both.progress.at_time(time) if time else 0

    async def _time_of(self, seq: int) -> int:
        """Return a record's log time (UTC ns), 0 if there is none."""
        record = await self._recent.record_at(seq) if 0 < seq <= self._follower.seq else None
        return record.time if record is not None else 0


class _Page:
    """Items of a page, encoded, within its bounds."""

    def __init__(self, limit: int, encode: Callable[[Logged], bytes]) -> None:
        self.items: list[msgspec.Raw] = []
        self.seen: list[_Seen] = []
        self._limit, self._bytes, self._encode = limit, 0, encode

    def take(self, seen: _Seen) -> bool:
        """Add an item; return whether the page is full without it."""
        body = self._encode(seen.event)
        if len(self.items) >= self._limit or (self.items and self._bytes + len(body) > _BYTES):
            return True
        self.items.append(msgspec.Raw(body))
        self.seen.append(seen)
        self._bytes += len(body)
        return False


def _as_after(cut: Position) -> str:
    """Return the value for `after` that continues from a cut."""
    text = str(replace(cut, beside=None))
    return text if cut.beside is None else f"{text}~{cut.beside}"


def _as_before(cut: Position, following: Position) -> str:
    """Return what `before` takes to end at a cut.  `following` is the place of what comes next, which says it for the log
    alone."""
    return str(following) if cut.beside is None else f"{replace(cut, beside=None)}~{cut.beside + 1}"
