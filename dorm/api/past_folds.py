"""The cluster at moments and over spans of the past, each from a fold that is as short as possible.

**Moments.**  The state at a moment comes from the nearest copy or snapshot before it, and a fold from there.  Copies of
states that were asked for, and of some on the way there, are kept while there is room, so a reader who moves around a
moment folds little.  The state never depends on them: it is that of a fold from the log's first record.

**Pictures.**  Partitions over time, for drawings.  What this process has folded since it caught up is in a picture that it
keeps, within bounds.  Spans that begin earlier are folded for the request; the last few of them are kept.

**Pasts.**  Past apps as rows, each span folded once: the pages of one list, and questions about one span, share a fold.  The
present state still has the apps that ended lately, so a span that begins within their retention takes none.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_right, insort
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dorm.core.evolve import evolve
from dorm.core.snapshot import FOLDED_BY, Copy, copy, load, restore
from dorm.core.state import SCHEMA, State
from events import subjects
from events.codec import decode
from events.kinds import PolicyChanged
from events.log.interface import nearest
from events.sources import fingerprint
from replay.moments import AtSequence, AtTime, BeforeEnd, MomentError, not_in_log
from replay.page.timeline import TimelineView, timeline
from replay.past import ended_since, gather, named
from replay.stepper import Pages
from replay.timeline.fold import Watcher
from replay.timeline.fold import timeline as folded

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.api.follower import Follower
    from dorm.api.threads import Heavy
    from dorm.core.app import App
    from dorm.core.folded import Folded
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay.moments import Moment
    from replay.past import PastApp
    from replay.timeline.lanes import Timeline

# --- moments ----------------------------------------------------------------------------------------------------------

T = TypeVar("T")

_NEAR = 4000
"""Records from a kept copy within which no snapshot is looked for."""
_EVERY = 4000
"""Records between two copies on the way to a moment."""
_LARGE = 2 << 20
"""Bytes of a state of which no copies are kept on the way."""
_CATCH_UP_S = 5.0
_SKEW_NS = 2_000_000_000
"""Nanoseconds by which a client's clock may be ahead."""


class Copies:
    """Copies of states by sequence, as many as fit; the one that was used longest ago goes first.  For several threads."""

    def __init__(self, room: int) -> None:
        """`room` in bytes."""
        self._room = room
        self._kept: OrderedDict[int, Copy] = OrderedDict()
        self._seqs: list[int] = []
        self._bytes = 0
        self._lock = threading.Lock()

    def keep(self, taken: Copy) -> None:
        with self._lock:
            if taken.seq in self._kept:
                self._kept.move_to_end(taken.seq)
                return
            self._kept[taken.seq] = taken
            insort(self._seqs, taken.seq)
            self._bytes += len(taken.encoded)
            while self._bytes > self._room and self._kept:
                seq, gone = self._kept.popitem(last=False)
                self._seqs.remove(seq)
                self._bytes -= len(gone.encoded)

    def before(self, seq: int) -> Copy | None:
        """Return the latest one at or before a sequence."""
        with self._lock:
            place = bisect_right(self._seqs, seq)
            if not place:
                return None
            nearest_seq = self._seqs[place - 1]
            self._kept.move_to_end(nearest_seq)
            return self._kept[nearest_seq]


class Moments:
    """The past of the log that a follower follows."""

    def __init__(self, follower: Follower, heavy: Heavy, room: int, clock: Callable[[], int] = time.time_ns) -> None:
        self._follower = follower
        self._log = follower.log
        self._heavy = heavy
        self._room = room
        self._copies = Copies(room)
        self._pages = Pages(follower.log, 0, room)
        self._build = fingerprint(*FOLDED_BY)
        self._clock = clock

    async def seq_of(self, moment: Moment) -> int:
        """Return the sequence of a moment's state.  Raises MomentError for one beyond the log."""
        if isinstance(moment, AtSequence):
            if moment.seq > self._follower.end:
                self._follower.end = max(self._follower.end, await self._log.end())
            if moment.seq > self._follower.end:
                raise not_in_log(moment.seq, 0, self._follower.end)
            return moment.seq
        if isinstance(moment, BeforeEnd):
            await self._follower.reach(0, _CATCH_UP_S)
            return min(self._follower.seq, await self._log.at_time(self._follower.time - moment.span))
        if moment.time > max(self._clock(), self._follower.time) + _SKEW_NS:
            raise MomentError("that moment is in the future; `POST /v1/plan` says what comes", code="moment.after_end")
        if moment.time >= self._follower.time and self._follower.ready:
            return self._follower.seq
        return await self._log.at_time(moment.time)

    async def look(self, seq: int, question: Callable[[State], T]) -> T:
        """Return what `question` finds in the state after a record, computed in a thread.  Raises MomentError, Unavailable,
        and the log's errors."""
        await self._follower.reach(seq, _CATCH_UP_S)
        async with self._heavy.turn():
            state = await self.within_turn(seq)
            return await self._heavy.run(lambda: question(state))

    async def state(self, seq: int) -> State:
        """Return the state after a record, which is the caller's own.  Raises as `look`."""
        await self._follower.reach(seq, _CATCH_UP_S)
        async with self._heavy.turn():
            return await self.within_turn(seq)

    async def present(self) -> State:
        """Return a copy of the present state, which is the caller's own."""
        taken = await self._follower.look(copy)
        return await self._heavy.run(partial(restore, taken))

    def forget(self) -> None:
        """Drop the cache: the log was replaced."""
        self._copies = Copies(self._room)
        self._pages = Pages(self._log, 0, self._room)

    async def within_turn(self, seq: int) -> State:
        """As `state`, of a record that is folded, for a caller that already has a turn."""
        kept = self._copies.before(seq)
        if kept is None or seq - kept.seq > _NEAR:
            state = await self._from_snapshot(seq, kept)
        else:
            state = await self._heavy.run(partial(restore, kept))
        async with contextlib.aclosing(self._pages.read(state.seq, seq)) as pages:
            async for page in pages:
                await self._heavy.run(partial(self._fold, state, page))
        await self._heavy.run(lambda: self._copies.keep(copy(state)))
        return state

    async def _from_snapshot(self, seq: int, kept: Copy | None) -> State:
        """Return the state of the nearest snapshot, or of the copy if that is nearer."""
        infos = [
            info.seq
            for info in await self._log.snapshots.infos()
            if info.seq <= seq and (info.core, info.build) == (SCHEMA, self._build)
        ]
        if infos and (kept is None or max(infos) > kept.seq):
            known = self._copies.before(max(infos))
            if known is not None and known.seq == max(infos):
                return await self._heavy.run(partial(restore, known))
            snapshot = await nearest(
                self._log, upto=seq, core=SCHEMA, build=self._build, load=partial(load, build=self._build)
            )
            if snapshot is not None:
                await self._heavy.run(lambda: self._copies.keep(copy(snapshot[1])))
                return snapshot[1]
        return State() if kept is None else await self._heavy.run(partial(restore, kept))

    def _fold(self, state: State, records: list[Record]) -> None:
        for record in records:
            evolve(state, record)
            if state.seq % _EVERY == 0:
                taken = copy(state)
                if len(taken.encoded) <= _LARGE:
                    self._copies.keep(taken)


# --- partitions over a span -------------------------------------------------------------------------------------------

_MOST_APPS = 20_000
"""Apps of the picture that is kept; it then starts over."""
_KEEP_EVERY = 500
"""Records after which it is thinned, if it has to be."""
_KEPT = 8
"""Pictures of the past that are kept."""


class Drawing(NamedTuple):
    """What to draw."""

    width: int = 1000
    """Pixels."""
    page: int = 0
    """The sequence after which the first app was submitted."""
    apps: frozenset[str] = frozenset()


class Pictures:
    """Of one follower's log."""

    def __init__(self, follower: Follower, heavy: Heavy) -> None:
        self._follower = follower
        self._heavy = heavy
        self._watcher: Watcher | None = None
        self._seen = 0
        self._kept: OrderedDict[tuple[int, int], Timeline] = OrderedDict()
        follower.on_ready.append(self._begin)
        follower.on_restart.append(self._kept.clear)

    def _begin(self, state: State) -> None:
        self._watcher, self._seen = Watcher(state), 0
        self._follower.observers.append(self._observe)

    def _observe(self, state: State, record: Record, folded: Folded) -> None:
        assert self._watcher is not None
        self._watcher.see(state, record, folded)
        self._seen += 1
        if self._seen % _KEEP_EVERY == 0:
            self._watcher.keep_within_bounds()
            if len(self._watcher.picture.apps) > _MOST_APPS:
                self._watcher = Watcher(state)

    async def draw(self, begin: int, finish: int | None, drawing: Drawing) -> TimelineView:
        """Return the span between two log times (UTC ns; `finish` None: until now).  Raises what reading the log raises."""
        view = await self._follower.look(lambda state: self._of_present(state, begin, finish, drawing))
        if view is not None:
            return view
        log = self._follower.log
        first = await log.at_time(begin)
        last = self._follower.seq if finish is None else min(self._follower.seq, await log.at_time(finish))
        picture = self._kept.get((first, last))
        if picture is None:
            async with self._heavy.turn():
                picture = await folded(log, AtSequence(min(first, last)), AtSequence(last))
            self._kept[first, last] = picture
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end((first, last))
        kept = picture
        return await self._heavy.run(lambda: _drawn(kept, begin, finish, None, drawing))

    def _of_present(self, state: State, begin: int, finish: int | None, drawing: Drawing) -> TimelineView | None:
        """Return the span from the picture that is kept; None if that begins later."""
        if self._watcher is None:
            return None
        picture = self._watcher.picture
        if picture.first and begin < picture.start:
            return None
        return _drawn(picture, begin, finish, state.time, drawing)


def _drawn(picture: Timeline, begin: int, finish: int | None, now: int | None, drawing: Drawing) -> TimelineView:
    return timeline(picture, begin, finish, now=now, width=drawing.width, page=drawing.page, apps=drawing.apps)


# --- apps of a span ---------------------------------------------------------------------------------------------------

_KEPT_PASTS = 4
_MOST_ROWS = 20_000
"""Rows of a span that is kept; one with more is folded for each request."""


class Span(NamedTuple):
    """What is asked for."""

    since: int | None
    """A sequence, None for the log's start."""
    until: int
    names: tuple[str, ...]
    """Names, ids, names of sweeps, or patterns; all apps if empty."""


class Pasts:
    """The latest spans of one log."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self._kept: OrderedDict[Span, list[PastApp]] = OrderedDict()

    def forget(self) -> None:
        """Drop the cache: the log was replaced."""
        self._kept.clear()

    def kept(self, span: Span) -> list[PastApp] | None:
        """Return the rows of a span that was folded lately, in the order of their submissions."""
        if (rows := self._kept.get(span)) is not None:
            self._kept.move_to_end(span)
        return rows

    async def of_present(
        self, span: Span, since: AtTime | BeforeEnd, follower: Follower
    ) -> tuple[Span, list[PastApp] | None]:
        """Return the rows of a span up to now from the present state, with its present end; None if that state may lack some
        of its apps.  `since` is when the span begins."""
        kept_as_long = not await self._retention_changed(span.since or 0, follower.cluster)
        wanted = _wanted(span.names)

        def look(state: State) -> tuple[int, list[PastApp] | None]:
            time = since.time if isinstance(since, AtTime) else state.time - since.span
            return state.seq, ended_since(state, time, wanted=wanted) if kept_as_long else None

        seq, rows = await follower.look(look, self.of_present.__qualname__)
        span = span._replace(until=seq)
        if rows is not None:
            self._keep(span, rows)
        return span, rows

    async def _retention_changed(self, since: int, cluster: str) -> bool:
        """Return whether apps may have been kept for another time than now."""
        pattern = subjects.fact_pattern(cluster, PolicyChanged.__name__)
        async with contextlib.aclosing(self._log.read(after=since, subjects=[pattern])) as batches:
            async for batch in batches:
                for event in map(decode, batch):
                    if isinstance(event, PolicyChanged) and (event.retention_s, event.tenant_retention_s) != (
                        None,
                        None,
                    ):
                        return True
        return False

    async def of(self, span: Span) -> list[PastApp]:
        """Fold a span. Raises as `replay.past.gather`; expensive, so the caller needs a turn."""
        if (rows := self.kept(span)) is not None:
            return rows

        since = AtSequence(span.since) if span.since is not None else None
        gathered = await gather(self._log, since, AtSequence(span.until), wanted=_wanted(span.names))
        self._keep(span, gathered.apps)
        return gathered.apps

    def _keep(self, span: Span, rows: list[PastApp]) -> None:
        if len(rows) <= _MOST_ROWS:
            self._kept[span] = rows
            while len(self._kept) > _KEPT_PASTS:
                self._kept.popitem(last=False)


def _wanted(names: tuple[str, ...]) -> Callable[[App], bool]:
    def wanted(app: App) -> bool:
        group = app.spec.group.name if app.spec.group is not None else ""
        return not names or any(named(app.name, app.id, group, name) for name in names)

    return wanted
