"""A cursor that steps through a log, event by event, forward and back, with the states before and after its place.

It stands on one event: a record, or one fact of a round.  A round is folded whole, so its facts share their states.  The
cursor keeps two states, one record apart, and a step forward folds a record into each.  A step back starts at a keyframe, a
jump at the nearest snapshot of the log; either way the states equal those of a fold from the log's start.  A jump changes the
cursor only when it has arrived, so a cancelled move has no effect.

`Pages` keeps records and `Keyframes` keeps states, so stepping back and forth reads and folds nothing twice.  Records are kept
in pages of `PAGE`, states at the sequences between two pages.  So any state is one keyframe and less than a page of folding
away, as long as its keyframe is kept.  Both are bounded; the least recently used entries are evicted first.

A `Search` says which events to step over and which to stop at: a tail's filter, decisions, failures.

Not to be used by several tasks at once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dorm.core.evolve import evolve
from dorm.core.query.concerns import KINDS, Concerns
from dorm.core.snapshot import FOLDED_BY, copy, load, restore
from dorm.core.state import SCHEMA, State
from events import kinds as k
from events.codec import decode
from events.log.interface import nearest
from events.log.records import LogDamaged
from events.positions import Logged, Position, logged
from events.sources import fingerprint
from replay import ReplayError
from replay.moments import AtSequence, AtTime, BeforeEnd, not_in_log
from replay.travel import state_at
from replay.whole_file import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from dorm.core.snapshot import Copy
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.moments import Moment


# --- records and states that are kept ---------------------------------------------------------------------------------

PAGE = 1000
"""Records per page, which bounds the folding of a step back.  Page i holds the sequences after i · PAGE."""
_ROOM = 64 << 20
_OF_RECORD = 200
"""Approximate bytes of a record beside its body."""


class Pages:
    """A log's records in order, each read once while there is room for it."""

    def __init__(self, log: ReadableLog, start: int, room: int = _ROOM) -> None:
        """`start` is the log's start, `room` is in bytes."""
        self._log, self._start, self._room = log, start, room
        self._kept: OrderedDict[int, list[Record]] = OrderedDict()
        self._bytes = 0

    def has(self, index: int, upto: int) -> bool:
        """Return whether a page is cached, up to the log's end (`upto`)."""
        page = self._kept.get(index)
        return page is not None and page[-1].seq >= min(upto, (index + 1) * PAGE)

    async def read(self, after: int, upto: int) -> AsyncGenerator[list[Record], None]:
        """Yield the records between two sequences that the log has, at most a page at once.  Raises as `log.read`."""
        after = max(after, self._start)
        while after < upto:
            page = self._kept.get(after // PAGE)
            if page is not None and page[-1].seq > after:
                self._kept.move_to_end(after // PAGE)
                yield (part := _between(page, after, upto))
                after = part[-1].seq
                continue
            async with aclosing(self._fetch(after // PAGE, upto)) as pages:
                async for page in pages:
                    if after < upto and page[-1].seq > after:
                        yield (part := _between(page, after, upto))
                        after = part[-1].seq
                    if after >= upto or self.has(after // PAGE, upto):
                        break
                else:
                    raise LogDamaged(f"the log ends before record {upto}, which it had before")

    async def _fetch(self, index: int, upto: int) -> AsyncGenerator[list[Record], None]:
        """Yield pages as they are filled, from this one on; the batch that holds `upto` is kept whole, since it was read."""
        begun = self._kept.get(index)
        after = begun[-1].seq if begun else max(self._start, index * PAGE)
        async with aclosing(self._log.read(after=after)) as batches:
            async for batch in batches:
                filled, done = [], 0
                while done < len(batch):
                    room = (batch[done].seq - 1) // PAGE * PAGE + PAGE - batch[done].seq + 1
                    part = batch[done : done + room]
                    index, done = (part[0].seq - 1) // PAGE, done + len(part)
                    page = self._kept.get(index, [])
                    page = [*page, *part[page[-1].seq + 1 - part[0].seq :]] if page else part
                    self._keep(index, page)
                    filled.append(page)
                for page in filled:
                    yield page
                if batch[-1].seq >= upto:
                    return

    def _keep(self, index: int, page: list[Record]) -> None:
        self._bytes += _size(page) - _size(self._kept.pop(index, []))
        self._kept[index] = page
        while self._bytes > self._room and len(self._kept) > 1:
            self._bytes -= _size(self._kept.popitem(last=False)[1])


def _between(page: list[Record], after: int, upto: int) -> list[Record]:
    first = page[0].seq
    return page[max(0, after + 1 - first) : upto + 1 - first]


def _size(page: list[Record]) -> int:
    return sum(len(record.body) + _OF_RECORD for record in page)


class Keyframes:
    """States at the sequences between two pages."""

    def __init__(self, room: int = _ROOM) -> None:
        """`room` in bytes."""
        self._room = room
        self._kept: OrderedDict[int, Copy] = OrderedDict()
        self._seqs: list[int] = []
        self._bytes = 0

    def pass_by(self, state: State) -> None:
        """Note each folded state, and keep a copy if it lies between two pages."""
        if state.seq % PAGE == 0 and state.seq and state.seq not in self._kept:
            kept = copy(state)
            self._kept[kept.seq] = kept
            insort(self._seqs, kept.seq)
            self._bytes += len(kept.encoded)
            while self._bytes > self._room and len(self._kept) > 1:
                seq, gone = self._kept.popitem(last=False)
                self._seqs.remove(seq)
                self._bytes -= len(gone.encoded)

    def before(self, seq: int) -> Copy | None:
        """Return the latest one at or before a sequence."""
        place = bisect_right(self._seqs, seq)
        if not place:
            return None
        kept_seq = self._seqs[place - 1]
        self._kept.move_to_end(kept_seq)
        return self._kept[kept_seq]


# --- filters ----------------------------------------------------------------------------------------------------------

_KINDS = {
    "decision": ("Resized",),
    "failure": (
        "AppFailed",
        "GenerationFailed",
        "MembersLost",
        "LiveResizeFailed",
        "NodeLost",
        "NodeLeaseEnded",
        "NodeSuspected",
        "ContainerExited",
    ),
}
_FIELDS = {"kind": "kinds", "app": "apps", "user": "users", "node": "nodes"}
_KINDS_BY_LOWER: dict[str, str] = {kind.lower(): kind for kind in KINDS}


class SearchError(ReplayError):
    """A filter that cannot be parsed."""

    code = "search.malformed"


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """All given filters must hold, each with any of its values.  Without a filter, every event matches."""

    kinds: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    what: Literal["", "decision", "failure"] = ""
    """Restriction to decisions or to failures; `kinds` is then ignored."""

    def __bool__(self) -> bool:
        return bool(self.kinds or self.apps or self.users or self.nodes or self.what)

    def __str__(self) -> str:
        pairs = [f"{name}={value}" for name, field in _FIELDS.items() for value in getattr(self, field)]
        return " ".join(pairs)

    def asking(self) -> Asking:
        return Asking(self)


class Asking:
    """A search through the log from front to back, because it learns on the way who owns which app and where it
    runs."""

    def __init__(self, search: Search) -> None:
        kinds = _KINDS.get(search.what, search.kinds)
        self._concerns = Concerns(kinds=kinds, apps=search.apps, users=search.users, nodes=search.nodes)
        self._what = search.what

    @property
    def needs_state(self) -> bool:
        """Whether it must `know` the state before the first event that it judges."""
        return bool(self._concerns.knowledge("*"))

    def know(self, state: State) -> None:
        self._concerns.know(state)

    def subjects(self, cluster: str) -> list[str]:
        """Return the subjects on which a match can be; empty for all."""
        return self._concerns.subjects(cluster)

    def wants(self, entry: Logged) -> bool:
        # Called for every event, since the answer for a later one may depend on it.
        wanted = self._concerns.wants(entry)
        return wanted and (self._what != "failure" or _failed(entry.event))


def _failed(event: Any) -> bool:
    """Return whether an event is a failure: a container's end is one if it was not requested and the exit code is not 0."""
    return not isinstance(event, k.ContainerExited) or (not event.asked and event.exit_code != 0)


def parse(text: str, state: State) -> Search:
    """Parse a filter: names of kinds, or of apps and nodes of this state, or `app=digits`, `user=ann`.

    Raises SearchError."""
    values_of: dict[str, list[str]] = {field: [] for field in _FIELDS.values()}
    for word in text.split():
        name, equals, value = word.partition("=")
        if equals and name in _FIELDS:
            values_of[_FIELDS[name]].append(_kind(value) if name == "kind" else value)
        else:
            values_of[_field_of(word, state)].append(_KINDS_BY_LOWER.get(word.lower(), word))
    kinds, apps, users, nodes = (tuple(dict.fromkeys(values_of[field])) for field in _FIELDS.values())
    return Search(kinds=kinds, apps=apps, users=users, nodes=nodes)


def _kind(word: str) -> str:
    if word.lower() not in _KINDS_BY_LOWER:
        text = f"there is no kind of event {word[:60]!r}; kinds are names such as AppSubmitted, Resized and NodeLost"
        raise SearchError(text, code="search.kind.unknown")
    return _KINDS_BY_LOWER[word.lower()]


def _field_of(word: str, state: State) -> str:
    if word.lower() in _KINDS_BY_LOWER:
        return "kinds"
    if state.find_app(word) is not None:
        return "apps"
    if word in state.nodes:
        return "nodes"
    if "=" in word:
        raise SearchError(f"{word[:60]!r} is not a filter; write kind=…, app=…, user=… or node=…")
    raise SearchError(
        f"{word[:60]!r} is neither a kind of event nor an app or node here; for one of another moment, write "
        f"app={word[:60]} or node=…",
        code="name.not_found",
    )


# --- the cursor -------------------------------------------------------------------------------------------------------

_WINDOW = 4 * PAGE
_WIDEST = 256 * PAGE
"""Records that a backward search reads at once, at first and at most."""
_MARKED = 64
"""Pages whose search results are cached."""


class Stepper:
    """A place in a log.  Its methods raise what `log.read` raises, and GapError."""

    def __init__(self, log: ReadableLog, first: State, end: int, cluster: str = "*") -> None:
        """`first` is the state before the first record, `cluster` names the log's cluster (`*`: any, for a file)."""
        self._log, self._cluster = log, cluster
        self.start, self.end = first.seq, end
        self.before, self.after = first, restore(copy(first))
        self._first = copy(first)
        self._here: list[Logged] = []
        self._index = 0
        self._pages = Pages(log, first.seq)
        self._keyframes = Keyframes()
        self._marks: OrderedDict[tuple[int, int, Search], list[Position]] = OrderedDict()
        self.folded = 0
        """Records folded so far: the cost of all moves."""

    @classmethod
    async def open(cls, log: ReadableLog, *, cluster: str = "*") -> Stepper:
        """Open a log before its first event; `grow` moves the end.  Raises MomentError if the state there is unknown."""
        start = await log.start()
        return cls(log, await state_at(log, AtSequence(start)), await log.end(), cluster)

    @property
    def cursor(self) -> Logged | None:
        """The event at the cursor; None before the first."""
        return self._here[self._index] if self._here else None

    @property
    def place(self) -> Position:
        return self._here[self._index].position if self._here else Position(self.start)

    def grow(self, end: int) -> None:
        """Move the end forward: the log has grown."""
        self.end = max(self.end, end)

    # --- moving ---------------------------------------------------------------------------------------------------------

    async def go(self, where: Moment | Position | None = None, progress: Progress | None = None) -> None:
        """Go to a moment (its last event), a position, or by default the log's last event.  Raises MomentError."""
        if isinstance(where, Position):
            await self._to(where.seq, where.index, progress)
        else:
            await self._to(await self._seq_of(where), None, progress)

    async def step(self, count: int, search: Search | None = None, progress: Progress | None = None) -> bool:
        """Step this many events forward, or back if negative; with a search, only matching events count.  Stops at the last
        one there is, and returns whether the cursor moved."""
        place = self.place
        for _ in range(abs(count)):
            target = await self._next(place, count > 0, search, progress)
            if target is None:
                break
            place = target
        moved = place != self.place
        if moved:
            await self._to(place.seq, place.index, progress)
        return moved

    async def _seq_of(self, moment: Moment | None) -> int:
        if isinstance(moment, AtSequence):
            if not self.start <= moment.seq <= self.end:
                raise not_in_log(moment.seq, self.start, self.end)
            return moment.seq
        if moment is None or self.end == self.start:
            return self.end
        time = moment.time if isinstance(moment, AtTime) else 0
        if isinstance(moment, BeforeEnd):
            time = (await self._record(self.end)).time - moment.span
        return min(self.end, await self._log.at_time(time))

    async def _to(self, seq: int, index: int | None, progress: Progress | None) -> None:
        """Go to a fact of a record, by default its last; a place before the first record is the first event."""
        if self.end == self.start:
            return
        if seq <= self.start:
            seq, index = self.start + 1, 0
        if seq != self.place.seq:
            ahead = seq - self.after.seq
            await (self._walk(seq) if 0 < ahead <= PAGE else self._jump(seq, progress))
        last = len(self._here) - 1
        self._index = last if index is None else min(index, last)

    async def _walk(self, seq: int) -> None:
        """Fold both states forward from here, either completely or not."""
        records = [record async for page in self._pages.read(self.before.seq, seq) for record in page]

        def fold() -> None:
            for record in records:
                if record.seq < seq:
                    self._fold(self.before, record)
                if record.seq > self.after.seq:
                    self._fold(self.after, record)
            self._arrive(records[-1])

        await in_thread(fold)

    async def _jump(self, seq: int, progress: Progress | None) -> None:
        before = await self._state(seq - 1, progress)
        record = await self._record(seq)

        def last() -> None:
            after = restore(copy(before))
            self._fold(after, record)
            self.before, self.after = before, after
            self._arrive(record)

        await in_thread(last)

    def _arrive(self, record: Record) -> None:
        self._here, self._index = events_of(record), 0

    async def _state(self, seq: int, progress: Progress | None) -> State:
        """Return a separate state at a sequence, and keep keyframes on the way there."""
        state = await self._base(seq)
        first = state.seq

        def fold(records: Sequence[Record]) -> None:
            for record in records:
                self._fold(state, record)

        async with aclosing(self._pages.read(first, seq)) as pages:
            async for page in pages:
                await in_thread(fold, page)
                if progress:
                    progress(state.seq - first, seq - first)
        return state

    async def _base(self, seq: int) -> State:
        """Return the nearest state to fold from: a keyframe, the state at the cursor, or a snapshot of the log."""
        kept = self._keyframes.before(seq) or self._first
        if kept.seq < self.before.seq <= seq:
            kept = await in_thread(copy, self.before)
        if seq - kept.seq > 2 * PAGE:
            trusting = partial(load, build=None)  # `nearest` has checked the build.
            snapshot = await nearest(
                self._log, upto=seq, core=SCHEMA, build=fingerprint(*FOLDED_BY), load=trusting
            )  # fmt: skip
            if snapshot is not None and snapshot[0].seq > kept.seq:
                return snapshot[1]
        return await in_thread(restore, kept)

    def _fold(self, state: State, record: Record) -> None:
        evolve(state, record)
        self.folded += 1
        self._keyframes.pass_by(state)

    async def _record(self, seq: int) -> Record:
        async with aclosing(self._pages.read(seq - 1, seq)) as pages:
            return (await anext(pages))[0]

    # --- looking --------------------------------------------------------------------------------------------------------

    async def around(self, back: int, on: int) -> list[Logged]:
        """Return the events around the cursor, with its own: at most `back` before it and `on` after it."""
        if not self._here:
            return []
        seq, entries = self.place.seq, []
        async with aclosing(self._pages.read(max(self.start, seq - back - 1), min(self.end, seq + on))) as pages:
            async for page in pages:
                entries += [entry for record in page for entry in events_of(record)]
        at = next(index for index, entry in enumerate(entries) if entry.position == self.place)
        return entries[max(0, at - back) : at + on + 1]

    async def wanted(self, events: Sequence[Logged], search: Search) -> set[Position]:
        """Return which of these events, which lie close together, match a search."""
        marks: set[Position] = set()
        for index in sorted({(event.position.seq - 1) // PAGE for event in events}):
            marks |= {*await self._marks_of(index, search)}
        return marks.intersection(event.position for event in events)

    # --- searching ------------------------------------------------------------------------------------------------------

    async def _next(
        self, place: Position, forward: bool, search: Search | None, progress: Progress | None
    ) -> Position | None:
        """Return the next match after a position, or the last one before it."""
        if not search:
            return await self._neighbour(place, forward)
        index = own = (max(place.seq, self.start + 1) - 1) // PAGE
        # First in the cached pages, then in the log.
        while self.start < (index + 1) * PAGE and index * PAGE < self.end:
            if index != own and not self._pages.has(index, self.end):
                break
            marks = await self._marks_of(index, search)
            beyond = [mark for mark in marks if (_key(mark) > _key(place) if forward else _key(mark) < _key(place))]
            if beyond:
                return beyond[0 if forward else -1]
            index += 1 if forward else -1
        else:
            return None
        if forward:
            return await self._first_after(index * PAGE, search, progress)
        return await self._last_before((index + 1) * PAGE, search, progress)

    async def _neighbour(self, place: Position, forward: bool) -> Position | None:
        index = place.index or 0
        if place.seq > self.start:
            here = events_of(await self._record(place.seq))
            if 0 <= (index_there := index + (1 if forward else -1)) < len(here):
                return here[index_there].position
        seq = place.seq + (1 if forward else -1)
        if not self.start < seq <= self.end:
            return None
        return events_of(await self._record(seq))[0 if forward else -1].position

    async def _marks_of(self, index: int, search: Search) -> list[Position]:
        """Return a page's matches."""
        begin, end = max(self.start, index * PAGE), min(self.end, (index + 1) * PAGE)
        key = (index, end, search)
        if key in self._marks:
            self._marks.move_to_end(key)
            return self._marks[key]
        asking = await self._asking(begin, search)
        marks: list[Position] = []
        async with aclosing(self._pages.read(begin, end)) as pages:
            async for page in pages:
                marks += await asyncio.to_thread(_matches, page, asking, end)
        self._marks[key] = marks
        if len(self._marks) > _MARKED:
            self._marks.popitem(last=False)
        return marks

    async def _first_after(self, begin: int, search: Search, progress: Progress | None) -> Position | None:
        async with aclosing(self._found(begin, self.end, search)) as batches:
            async for seq, page in batches:
                if page:
                    return page[0]
                if progress:
                    progress(seq - begin, self.end - begin)
        return None

    async def _last_before(self, upto: int, search: Search, progress: Progress | None) -> Position | None:
        """Search backwards in windows that grow, so a near match is found quickly."""
        window, first = _WINDOW, upto
        while upto > self.start:
            begin, last = max(self.start, upto - window), None
            async with aclosing(self._found(begin, upto, search)) as batches:
                async for _, page in batches:
                    last = page[-1] if page else last
            if last is not None:
                return last
            upto, window = begin, min(4 * window, _WIDEST)
            if progress:
                progress(first - upto, first - self.start)
        return None

    async def _found(self, begin: int, end: int, search: Search) -> AsyncGenerator[tuple[int, list[Position]], None]:
        """Yield the matches in a range of the log, batch by batch, each with the sequence up to which it was read."""
        asking = await self._asking(begin, search)
        async with aclosing(self._log.read(after=begin, subjects=asking.subjects(self._cluster))) as batches:
            async for batch in batches:
                yield batch[-1].seq, await asyncio.to_thread(_matches, batch, asking, end)
                if batch[-1].seq >= end:
                    return

    async def _asking(self, begin: int, search: Search) -> Asking:
        asking = search.asking()
        if asking.needs_state:
            asking.know(await self._state(begin, None))
        return asking


def events_of(record: Record) -> list[Logged]:
    """Like `events.positions.logged`, but a round without facts is an event too, so each record is a place."""
    entries = [*logged(record)]
    return entries or [Logged(Position(record.seq), record.time, record.subject, decode(record))]


def _matches(records: Sequence[Record], asking: Asking, end: int) -> list[Position]:
    return [
        entry.position for record in records if record.seq <= end for entry in events_of(record) if asking.wants(entry)
    ]  # fmt: skip


def _key(place: Position) -> tuple[int, int]:
    return place.seq, place.index or 0
