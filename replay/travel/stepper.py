"""A cursor that steps through a log, event by event, forward and back, with the states before and after its place.

It stands on one event: a record, or one fact of a round.  A round is folded whole, so its facts share their states.
The cursor keeps two states, one record apart, and a step forward folds a record into each.  A step back starts at a keyframe
(`replay.travel.pages`), a jump at the nearest snapshot of the log; either way the states equal those of a fold from the log's
start.  A jump changes the cursor only when it has arrived, so a cancelled move has no effect.
Not to be used by several tasks at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from dorm.core.evolve import evolve
from dorm.core.snapshot import FOLDED_BY, copy, load, restore
from dorm.core.state import SCHEMA, State
from events.codec import decode
from events.log.interface import nearest
from events.positions import Logged, Position, logged
from events.sources import fingerprint
from replay.moments import AtSequence, AtTime, BeforeEnd, not_in_log
from replay.travel.pages import PAGE, Keyframes, Pages
from replay.travel.travel import state_at
from replay.whole_file import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.moments import Moment
    from replay.travel.search import Asking, Search

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
            found = await self._next(place, count > 0, search, progress)
            if found is None:
                break
            place = found
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
            found = await nearest(
                self._log, upto=seq, core=SCHEMA, build=fingerprint(*FOLDED_BY), load=trusting
            )  # fmt: skip
            if found is not None and found[0].seq > kept.seq:
                return found[1]
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
        seq, found = self.place.seq, []
        async with aclosing(self._pages.read(max(self.start, seq - back - 1), min(self.end, seq + on))) as pages:
            async for page in pages:
                found += [one for record in page for one in events_of(record)]
        at = next(index for index, one in enumerate(found) if one.position == self.place)
        return found[max(0, at - back) : at + on + 1]

    async def wanted(self, events: Sequence[Logged], search: Search) -> set[Position]:
        """Return which of these events, which lie close together, match a search."""
        found: set[Position] = set()
        for index in sorted({(event.position.seq - 1) // PAGE for event in events}):
            found |= {*await self._marks_of(index, search)}
        return found.intersection(event.position for event in events)

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
            if 0 <= (beside := index + (1 if forward else -1)) < len(here):
                return here[beside].position
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
        found: list[Position] = []
        async with aclosing(self._pages.read(begin, end)) as pages:
            async for page in pages:
                found += await asyncio.to_thread(_matches, page, asking, end)
        self._marks[key] = found
        if len(self._marks) > _MARKED:
            self._marks.popitem(last=False)
        return found

    async def _first_after(self, begin: int, search: Search, progress: Progress | None) -> Position | None:
        async with aclosing(self._found(begin, self.end, search)) as batches:
            async for seq, found in batches:
                if found:
                    return found[0]
                if progress:
                    progress(seq - begin, self.end - begin)
        return None

    async def _last_before(self, upto: int, search: Search, progress: Progress | None) -> Position | None:
        """Search backwards in windows that grow, so a near match is found quickly."""
        window, first = _WINDOW, upto
        while upto > self.start:
            begin, last = max(self.start, upto - window), None
            async with aclosing(self._found(begin, upto, search)) as batches:
                async for _, found in batches:
                    last = found[-1] if found else last
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
    found = [*logged(record)]
    return found or [Logged(Position(record.seq), record.time, record.subject, decode(record))]


def _matches(records: Sequence[Record], asking: Asking, end: int) -> list[Position]:
    return [
        one.position for record in records if record.seq <= end for one in events_of(record) if asking.wants(one)
    ]  # fmt: skip


def _key(place: Position) -> tuple[int, int]:
    return place.seq, place.index or 0
