"""States of the past: the nearest copy or snapshot before a moment, and a short fold from there.

Copies of states that were asked for, and of some on the way there, are kept while there is room, so a reader who moves around
a moment folds little. The state never depends on them: it is that of a fold from the log's first record.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_right, insort
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from dorm.core.fold.evolve import evolve
from dorm.core.snapshot import FOLDED_BY, Copy, copy, load, restore
from dorm.core.state import SCHEMA, State
from events.log.nearest import nearest
from events.sources import fingerprint
from replay.moments import AtSequence, BeforeEnd, MomentError, not_in_log
from replay.travel.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.api.follower import Follower
    from dorm.api.threads import Heavy
    from events.log.records import Record
    from replay.moments import Moment

T = TypeVar("T")

_NEAR = 4000
"""Records from a kept copy within which no snapshot is looked for."""
_EVERY = 4000
"""Records between two copies on the way to a moment."""
_LARGE = 2 << 20
"""Bytes of a state of which no copies are kept on the way."""
_CATCH_UP_S = 5.0
_SKEW_NS = 2_000_000_000
"""By how much a client's clock may be ahead."""


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
            found = self._seqs[place - 1]
            self._kept.move_to_end(found)
            return self._kept[found]


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
            found = await nearest(
                self._log, upto=seq, core=SCHEMA, build=self._build, load=partial(load, build=self._build)
            )
            if found is not None:
                await self._heavy.run(lambda: self._copies.keep(copy(found[1])))
                return found[1]
        return State() if kept is None else await self._heavy.run(partial(restore, kept))

    def _fold(self, state: State, records: list[Record]) -> None:
        for record in records:
            evolve(state, record)
            if state.seq % _EVERY == 0:
                taken = copy(state)
                if len(taken.encoded) <= _LARGE:
                    self._copies.keep(taken)
