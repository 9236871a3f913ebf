"""Folds the log as it grows, and answers from the state.

Only one task at a time uses the state, to fold a batch or to answer a question, so no answer sees a half-folded
batch. It runs in a thread or, for short work, on the loop itself (`dorm.api.following.threads`). `seq` is this
process's position; everything else waits for it (`reach`) or is called when it moves (`watch`).

A log that cannot be followed (damaged, or restored from a copy) ends nothing: the follower says so (`trouble`), and starts
over from a snapshot, or from the log's first record, until it can.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from dorm.api.errors import Missing, Unavailable
from dorm.api.following.threads import SMALL, Thread
from dorm.core.fold.evolve import GapError, evolve
from dorm.core.state import State
from dorm.snapshots import newest
from events.kinds import Round
from events.log.records import LogClosed, LogError
from events.logger import Logger
from replay.page.view import decision_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from events.log.interface import EventLog
    from events.log.records import Record
    from events.positions import Logged
    from replay.travel.travel import Seen

    Watcher = Callable[[list[Record]], None]
    """Called on the loop with each batch after it was folded."""

T = TypeVar("T")

_AGAIN_S = 1.0
_END_S = 1.0
"""Seconds between two looks at the log's end, by which the lag is known."""
_FOLDED_AT_ONCE = 500
"""Records after which the thread takes what waits for it."""
_FEW = 10
"""Records that are folded on the loop, with all observers: some hundreds of microseconds."""

_log = Logger(__name__)


class Follower:
    """One process's fold of one log."""

    def __init__(self, log: EventLog, cluster: str) -> None:
        self.log = log
        self.cluster = cluster
        self.seq = 0
        """The last record that is folded."""
        self.time = 0
        """Its log time (UTC ns)."""
        self.end = 0
        """The last record known to be on the log."""
        self.trouble = "the log is being read"
        """Why this process is not up to date; "" while it follows."""
        self.observers: list[Seen] = []
        """Called in the state's thread with each record as it is folded."""
        self.on_restart: list[Callable[[], None]] = []
        """Called before it starts over: earlier knowledge of the log may be wrong."""
        self._watchers: list[Watcher] = []
        self.decided: Logged | None = None
        """The last decision of the state, for its thread."""
        self.on_ready: list[Callable[[State], None]] = []
        """Called in the state's thread when it has caught up, before the first answer."""
        self._thread = Thread("dorm-api-state")
        self._state = State()
        self._moved = asyncio.Event()
        self._caught_up = False

    @property
    def ready(self) -> bool:
        """Whether it has caught up once since it started over, and follows."""
        return self._caught_up and not self.trouble

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    # --- following ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until cancelled, or until the connection is closed permanently (LogClosed)."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._look_ahead(), name="log's end")
                while True:
                    try:
                        await self._follow()
                    except LogClosed:
                        raise
                    except (LogError, GapError) as error:
                        self.trouble, self._caught_up = str(error), False
                        _log.warning("the log cannot be followed, starting over", reason=str(error))
                        for restart in self.on_restart:
                            restart()
                        await asyncio.sleep(_AGAIN_S)
        finally:
            self._thread.close()

    async def _follow(self) -> None:
        found = await newest(self.log)
        state = found[1] if found is not None else State()
        end = self.end = await self.log.end()
        last = await self.log.record_at(state.figures.seq) if state.figures.seq else None
        await self._thread.run(lambda: self._take_up(state, last))
        self._reached(state.seq, state.time)
        if state.seq >= end:
            await self._up_to_date()
        async with contextlib.aclosing(self._records()) as batches:
            async for batch in batches:
                for first in range(0, len(batch), _FOLDED_AT_ONCE):
                    part = batch[first : first + _FOLDED_AT_ONCE]
                    short = len(part) <= _FEW and sum(len(record.body) for record in part) < SMALL
                    await self._thread.run(lambda part=part: self._fold(part), short=short)  # type: ignore[misc]
                    self._reached(part[-1].seq, part[-1].time)
                    for watcher in self._watchers:
                        watcher(part)
                if self.seq >= end and not self._caught_up:
                    await self._up_to_date()

    def _records(self) -> AsyncGenerator[list[Record], None]:
        return self.log.read(after=self.seq, follow=True)

    def _take_up(self, state: State, last: Record | None) -> None:
        self._state = state
        self.decided = decision_in(last) if last is not None else None
        self.observers.clear()

    def _fold(self, records: list[Record]) -> None:
        for record in records:
            event, folded = evolve(self._state, record)
            if isinstance(event, Round) and folded != "void":
                self.decided = decision_in(record) or self.decided
            for seen in self.observers:
                seen(self._state, record, event, folded)

    def _reached(self, seq: int, time: int) -> None:
        self.seq, self.time = seq, time
        self.end = max(self.end, seq)
        self._moved.set()
        self._moved = asyncio.Event()

    async def _up_to_date(self) -> None:
        await self._thread.run(lambda: [ready(self._state) for ready in self.on_ready])
        self.trouble, self._caught_up = "", True
        self._moved.set()
        self._moved = asyncio.Event()

    async def _look_ahead(self) -> None:
        """Keep the log's end known, by which the lag is measured."""
        while True:
            await asyncio.sleep(_END_S)
            try:
                self.end = max(self.seq, await self.log.end())
            except LogError as error:
                if self._caught_up:
                    self.trouble = str(error)
            else:
                if self._caught_up:
                    self.trouble = ""

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def look(self, question: Callable[[State], T], kind: str = "") -> T:
        """Return what `question` finds in the present state, in the state's thread, or at once if questions of this kind are
        answered fast.  It must return nothing that the fold changes later.  Raises Unavailable until the log was read once."""
        if not self._caught_up:
            raise Unavailable(f"the log is not read yet: {self.trouble}", code="api.starting")
        return await self._thread.run(lambda: question(self._state), kind)

    async def reach(self, seq: int, timeout: float) -> None:
        """Wait until a record is folded. Raises Missing if the log does not have it, Unavailable if it takes too
        long."""
        if self.seq < seq and seq > self.end:
            self.end = max(self.end, await self.log.end())
            if seq > self.end:
                raise Missing(f"the log ends at {self.end}, before {seq}", code="moment.after_end")
        try:
            async with asyncio.timeout(timeout):
                while self.seq < seq or not self._caught_up:
                    await self._moved.wait()
        except TimeoutError:
            raise Unavailable(
                f"this process has read the log up to {self.seq}, and not yet up to {seq}; try again", code="api.behind"
            ) from None

    async def latest(self, timeout: float) -> None:
        """Wait until everything is folded that is on the log now.  Raises Unavailable, and the log's errors."""
        await self.reach(await self.log.end(), timeout)

    async def moved(self) -> None:
        """Wait until the next batch is folded."""
        await self._moved.wait()
