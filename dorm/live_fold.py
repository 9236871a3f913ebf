"""A fold of a log that continues as the log grows: one for every process that keeps a state up to date.

    fold = LiveFold(log)
    fold.observers.append(tally.see)             each record, as it is folded
    await fold.run()                             follow the log until cancelled
    await fold.look(lambda state: len(state.apps))

Two classes.  `Fold` is a state and the records folded into it, driven by its owner, who reads the log: a client, which
catches up when it is asked, and a shadow policy, which folds up to each decision.  `LiveFold` drives itself in the
background: the API, the metrics, the webhooks and the tenants' views.

**Where it begins.**  At the newest snapshot of the log that counts (`dorm.snapshots.newest`), or where its owner says;
without one, at the log's first record.

**Who uses the state.**  One at a time: to fold a piece of records or to answer one question, so no answer sees a half-folded
piece. Work that uses the state runs in a thread of its own, or on the loop if it is known to be short (`Thread`).  A fold
without a thread folds on the loop, in pieces, with a turn for others between them.

**Who sees records.**  `observers` are called with each record in the state's thread, `watchers` with each piece on the loop
after it was folded.  `seq` and `time` are those of the last piece that everyone has seen; everything else waits for them
(`reach`, `moved`).

**What ends it.**  Cancellation, and a connection that is closed permanently (LogClosed).  Nothing else does: a log that is
damaged, has a gap, was restored from a copy or refuses to be read, and an observer that raises, make the fold say so
(`trouble`), forget what it knew (`on_restart`) and start over from a snapshot after a pause, until it can follow again.  So
that no half-updated reader survives, the observers are dropped with the state, and made again by `on_begin` and `on_ready`.
A lost connection needs none of that: the log's reader waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from dorm.core.evolve import GapError, evolve
from dorm.core.state import State
from dorm.snapshots import newest
from events.codec import decode
from events.log.records import LogClosed, LogError, LogUnavailable
from events.logger import Logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from dorm.core.folded import Folded
    from events.kinds import Event
    from events.log.interface import ReadableLog
    from events.log.records import Record

    Observer = Callable[[State, Record, Event, Folded], None]
    """Called in the state's thread with each record after it was folded: the state after it, the record, and its event."""
    Watcher = Callable[[list[Record]], None]
    """Called on the loop with each piece after it was folded."""
    Step = Callable[[State, Sequence[Record]], None]
    """Folds a piece of records."""

T = TypeVar("T")

SMALL = 64 << 10
"""Bytes that are encoded, compressed or folded on the loop."""
_SHORT_S = 0.002
"""Seconds that the loop may compute at once."""
_KEPT = 0.9
"""Share of a kind's time that each shorter run leaves of it: one long answer sends its kind to the thread for a while."""
AGAIN_S = 1.0
"""Pause before the fold starts over, in seconds."""
_PIECE = 500
"""Records after which the thread takes what waits for it."""
_FEW = 10
"""Records that are folded on the loop, with all observers: some hundreds of microseconds."""

_log = Logger(__name__)


class NotFolded(LogUnavailable):
    """The fold has not caught up with its log since it (last) started, so it can answer nothing."""

    code = "log.view.behind"


class Thread:
    """What one thing, such as a state, is used by: one piece of work at a time, in a thread of its own.

    Work that is known to be short runs on the loop instead, if nothing else uses the thing.  The way to a thread and back is
    two waits for a processor, which on a busy machine take longer than most answers.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._using = threading.Lock()
        self._took_s: dict[str, float] = {}
        """Seconds that each kind of work takes, by the names that callers gave it."""

    async def run(self, work: Callable[[], T], kind: str = "", *, short: bool = False) -> T:
        """Do some work.  It is short if the caller knows that, or if work of this kind, of which there are few, has been."""
        if (short or self._took_s.get(kind, _SHORT_S) < _SHORT_S) and self._using.acquire(blocking=False):
            try:
                return self._measured(work, kind)
            finally:
                self._using.release()
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._alone, work, kind)

    def _alone(self, work: Callable[[], T], kind: str) -> T:
        with self._using:
            return self._measured(work, kind)

    def _measured(self, work: Callable[[], T], kind: str) -> T:
        began = time.thread_time()
        try:
            return work()
        finally:
            if kind:
                took_s = time.thread_time() - began
                self._took_s[kind] = max(took_s, _KEPT * self._took_s.get(kind, 0.0))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


async def newest_state(log: ReadableLog) -> State:
    """Return the state of the newest snapshot, or that before the first record.  Raises LogUnavailable, LogRefused."""
    snapshot = await newest(log)
    return snapshot[1] if snapshot is not None else State()


class Fold:
    """A state of one log, from a snapshot on, which its owner brings up to date."""

    def __init__(self, log: ReadableLog, begin: Callable[[], Awaitable[State]] | None = None) -> None:
        """`begin` returns the state to start from, by default that of the newest snapshot."""
        self.log = log
        self.state = State()
        self.begun = False
        """Whether `state` is one to answer from."""
        self._starting_state = begin if begin is not None else lambda: newest_state(log)
        self._beginning = asyncio.Lock()

    async def begin(self) -> State:
        """Return the state, once it is one: the first caller looks for the snapshot.  Raises the log's errors."""
        async with self._beginning:
            if not self.begun:
                self.state = await self._starting_state()
                self.begun = True
        return self.state

    def take(self, record: Record) -> tuple[Event, Folded]:
        """Fold the next record; return its event and what became of it.  Raises GapError."""
        return evolve(self.state, record)

    def take_new(self, record: Record) -> Event:
        """Fold a record unless that is done, since several readers may bring one state up to date; return its event."""
        return self.take(record)[0] if record.seq > self.state.seq else decode(record)

    async def catch_up(self) -> State:
        """Return the state at the present end of the log.  Several callers may bring the one state up to date at once.
        Raises the log's errors, and GapError."""
        state = await self.begin()
        async with contextlib.aclosing(self.log.read(after=state.seq)) as batches:
            async for batch in batches:
                for record in batch:
                    self.take_new(record)
        return state


class LiveFold:
    """One process's fold of one log, which follows it."""

    def __init__(
        self,
        log: ReadableLog,
        *,
        begin: Callable[[], Awaitable[State]] | None = None,
        step: Step | None = None,
        thread: Thread | None = None,
        few: int = _FEW,
        piece: int = _PIECE,
        again_s: float | None = None,
    ) -> None:
        """`begin` returns the state to start from, by default that of the newest snapshot; `step` folds a piece of records in
        the place of `evolve` and the observers.  Without a `thread` everything runs on the loop; with one, at most `few`
        records at once do."""
        self.log = log
        self.seq = 0
        """Sequence of the last record that is folded."""
        self.time = 0
        """Log time of that record (UTC ns)."""
        self.end = 0
        """Sequence of the last record known to be on the log."""
        self.folded_at = 0.0
        """Loop time at which it was folded."""
        self.trouble = "the log is being read"
        """Reason why this process is not up to date; "" while it follows."""
        self.caught_up = asyncio.Event()
        """Event that is set while it has folded everything that the log held when it (last) began."""
        self.observers: list[Observer] = []
        """Readers of each record, in the state's thread; dropped when it starts over."""
        self.watchers: list[Watcher] = []
        """Readers of each piece, on the loop."""
        self.on_begin: list[Callable[[State], None]] = []
        """Called in the state's thread with the state that it starts from, each time."""
        self.on_ready: list[Callable[[State], None]] = []
        """Called in the state's thread when it has caught up, before the first answer, each time."""
        self.on_restart: list[Callable[[], None]] = []
        """Called on the loop before it starts over: earlier knowledge of the log may be wrong."""
        self._state = State()
        self._begin = begin if begin is not None else lambda: newest_state(log)
        self._step = step if step is not None else self._evolve
        self._thread = thread
        self._few, self._piece, self._again_s = few, piece, again_s
        self._moved = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether it has caught up once since it started over, and follows."""
        return self.caught_up.is_set() and not self.trouble

    # --- following ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until cancelled, or until the connection is closed permanently (LogClosed)."""
        while True:
            try:
                await self._follow()
            except LogClosed:
                raise
            except (LogError, GapError) as error:
                self._stop(str(error))
                _log.warning("the log cannot be followed, starting over", reason=str(error))
            except Exception as error:
                self._stop(repr(error))
                _log.exception("the log cannot be followed, starting over; please report this")
            else:
                self._stop("the log ended")
                _log.warning("the log cannot be followed, starting over", reason="it ended")
            await asyncio.sleep(AGAIN_S if self._again_s is None else self._again_s)

    def _stop(self, trouble: str) -> None:
        self.trouble = trouble
        self.caught_up.clear()
        for restart in self.on_restart:
            restart()
        self._announce()

    async def _follow(self) -> None:
        state = await self._begin()
        end = self.end = await self.log.end()
        await self._use(lambda: self._take_up(state))
        self._reached(state.seq, state.time)
        if self.seq >= end:
            await self._up_to_date()
        async with contextlib.aclosing(self.log.read(after=self.seq, follow=True)) as batches:
            async for batch in batches:
                for first in range(0, len(batch), self._piece):
                    await self._fold(batch[first : first + self._piece])
                if self.seq >= end and not self.caught_up.is_set():
                    await self._up_to_date()

    def _take_up(self, state: State) -> None:
        self._state = state
        self.observers.clear()
        for begun in self.on_begin:
            begun(state)

    async def _fold(self, records: list[Record]) -> None:
        short = len(records) <= self._few and sum(len(record.body) for record in records) < SMALL
        await self._use(lambda: self._step(self._state, records), short=short)
        self._reached(records[-1].seq, records[-1].time)
        for watcher in self.watchers:
            watcher(records)
        if self._thread is None:
            await asyncio.sleep(0)

    def _evolve(self, state: State, records: Sequence[Record]) -> None:
        for record in records:
            event, folded = evolve(state, record)
            for see in self.observers:
                see(state, record, event, folded)

    def _reached(self, seq: int, time: int) -> None:
        self.seq, self.time = seq, time
        self.end = max(self.end, seq)
        self.folded_at = asyncio.get_running_loop().time()
        self._announce()

    async def _up_to_date(self) -> None:
        await self._use(lambda: [ready(self._state) for ready in self.on_ready])
        self.trouble = ""
        self.caught_up.set()
        self._announce()

    def _announce(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _use(self, work: Callable[[], T], kind: str = "", *, short: bool = False) -> T:
        return work() if self._thread is None else await self._thread.run(work, kind, short=short)

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def look(self, question: Callable[[State], T], kind: str = "") -> T:
        """Return what `question` finds in the present state, in the state's thread, or at once if questions of this kind are
        answered fast.  It must return nothing that the fold changes later.  Raises NotFolded until the log was read once."""
        if not self.caught_up.is_set():
            raise NotFolded(f"the log is not read yet: {self.trouble}")
        return await self._use(lambda: question(self._state), kind)

    async def reach(self, seq: int, timeout: float | None = None) -> None:
        """Wait until a record is folded, and the fold has caught up.  Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while self.seq < seq or not self.caught_up.is_set():
                await self._moved.wait()

    async def moved(self) -> None:
        """Wait until the next piece is folded, or the fold starts over."""
        await self._moved.wait()
