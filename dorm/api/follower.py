"""The API's fold of one log, and the three things that live from it.

`Follower` is a `dorm.live_fold.LiveFold` that knows the log's end as well, from which its lag follows, and the last
decision.  `RecentLog` is the log up to where it is folded; it reads the newest records from memory, in short pieces with a
pause between them, so that a long read leaves the loop to others.  `Requester` is a client for one request of one user: it
asks as `dorm.client` does, and reads from the follower.  `Counted` is what has happened on the log since the fold caught
up, for metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dorm.api.errors import Missing, Unavailable
from dorm.client.client import Client
from dorm.client.finding import find_app
from dorm.core.snapshot import copy, restore
from dorm.core.state import App
from dorm.live_fold import LiveFold, NotFolded, Thread, newest_state
from dorm.metrics.cluster_metrics import cluster_metrics
from dorm.metrics.tally import Tally
from events.kinds import Round
from events.log.interface import ReadableLog
from events.log.records import LogError, LogRefused, Record, on_subjects
from replay.page.view import decision_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from prometheus_client import Metric

    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.log.interface import Bus, EventLog
    from events.log.records import Record
    from events.log.stores import ReadableSnapshots
    from events.positions import Logged


# --- follower ---------------------------------------------------------------------------------------------------------

T = TypeVar("T")

_END_S = 1.0
"""Seconds between two looks at the log's end, by which the lag is known."""


class Follower(LiveFold):
    """One process's fold of one log."""

    log: EventLog

    def __init__(self, log: EventLog, cluster: str) -> None:
        super().__init__(log, begin=self._newest, thread=Thread("dorm-api-state"))
        self.cluster = cluster
        self.decided: Logged | None = None
        """The last decision of the state, for its thread."""
        self._decided_at_begin: Record | None = None
        self.on_begin.append(self._take_last_decision)

    async def run(self) -> None:
        """Follow until cancelled, or until the connection is closed permanently (LogClosed)."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._look_ahead(), name="log's end")
                await super().run()
        finally:
            if self._thread is not None:
                self._thread.close()

    async def _newest(self) -> State:
        state = await newest_state(self.log)
        self._decided_at_begin = await self.log.record_at(state.figures.seq) if state.figures.seq else None
        return state

    def _take_last_decision(self, _state: State) -> None:
        self.decided = decision_in(self._decided_at_begin) if self._decided_at_begin is not None else None
        self.observers.append(self._note_decision)

    def _note_decision(self, _state: State, record: Record, folded: Folded) -> None:
        event = folded.event
        if isinstance(event, Round) and folded.outcome != "void":
            self.decided = decision_in(record) or self.decided

    async def _look_ahead(self) -> None:
        """Keep the log's end known, by which the lag is measured."""
        while True:
            await asyncio.sleep(_END_S)
            try:
                self.end = max(self.seq, await self.log.end())
            except LogError as error:
                if self.caught_up.is_set():
                    self.trouble = str(error)
            else:
                if self.caught_up.is_set():
                    self.trouble = ""

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def look(self, question: Callable[[State], T], kind: str = "") -> T:
        """Return what `question` finds, as `LiveFold.look` does.  Raises Unavailable until the log was read once."""
        try:
            return await super().look(question, kind)
        except NotFolded as error:
            raise Unavailable(str(error), code="api.starting") from None

    async def reach(self, seq: int, timeout: float | None = None) -> None:
        """Wait until a record is folded. Raises Missing if the log does not have it, Unavailable if it takes too
        long."""
        if self.seq < seq and seq > self.end:
            self.end = max(self.end, await self.log.end())
            if seq > self.end:
                raise Missing(f"the log ends at {self.end}, before {seq}", code="moment.after_end")
        try:
            await super().reach(seq, timeout)
        except TimeoutError:
            raise Unavailable(
                f"this process has read the log up to {self.seq}, and not yet up to {seq}; try again", code="api.behind"
            ) from None

    async def latest(self, timeout: float) -> None:
        """Wait until everything is folded that is on the log now.  Raises Unavailable, and the log's errors."""
        await self.reach(await self.log.end(), timeout)


# --- the newest records -----------------------------------------------------------------------------------------------

_MOST = 20_000
_ROOM = 32 << 20
"""Records and bytes that are kept."""
_OF_RECORD = 200
_PIECE = 200


class RecentLog(ReadableLog):
    """A follower's log, up to where it is folded.  It cannot be followed: streams are for that."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._records: deque[Record] = deque()
        self._bytes = 0
        follower.watchers.append(self._keep)
        follower.on_restart.append(self._forget)

    def _keep(self, batch: list[Record]) -> None:
        for record in batch:
            if self._records and record.seq != self._records[-1].seq + 1:
                self._forget()
            self._records.append(record)
            self._bytes += len(record.body) + _OF_RECORD
        while len(self._records) > _MOST or (self._bytes > _ROOM and len(self._records) > 1):
            self._bytes -= len(self._records.popleft().body) + _OF_RECORD

    def _forget(self) -> None:
        self._records.clear()
        self._bytes = 0

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        if follow:
            raise LogRefused("the newest records of a log cannot be followed", code="log.not_growing")
        until = self._follower.seq
        while after < until and self._records and self._records[0].seq <= after + 1:
            begin = after + 1 - self._records[0].seq
            piece = [self._records[index] for index in range(begin, min(begin + _PIECE, len(self._records)))]
            piece = [record for record in piece if record.seq <= until]
            if not piece:
                return
            after = piece[-1].seq
            if wanted := on_subjects(piece, subjects):
                yield wanted
            await asyncio.sleep(0)
        if after >= until:
            return
        async with contextlib.aclosing(self._follower.log.read(after=after, subjects=subjects)) as batches:
            async for batch in batches:
                for first in range(0, len(batch), _PIECE):
                    piece = [record for record in batch[first : first + _PIECE] if record.seq <= until]
                    if not piece:
                        return
                    yield piece
                    await asyncio.sleep(0)

    async def end(self) -> int:
        return self._follower.seq

    async def at_time(self, time: int) -> int:
        return await self._follower.log.at_time(
            time
        )  # It may be beyond what is folded: a place of progress is the same for all.

    @property
    def snapshots(self) -> ReadableSnapshots:
        return self._follower.log.snapshots

    async def record_at(self, seq: int) -> Record | None:
        if self._records and self._records[0].seq <= seq <= self._records[-1].seq:
            return self._records[seq - self._records[0].seq]
        return await self._follower.log.record_at(seq)

    async def close(self) -> None:
        return None


# --- a client of one request ------------------------------------------------------------------------------------------

_CATCH_UP_S = 5.0
_APP = msgspec.msgpack.Decoder(App)


class Requester(Client):
    """Made for each request that changes something, and for container output."""

    def __init__(self, follower: Follower, bus: Bus, user: str, clock: Callable[[], int]) -> None:
        super().__init__(follower.log, bus, follower.cluster, user=user, clock=clock, begin=self._copied)
        self._follower = follower

    async def look(self, question: Callable[[State], T]) -> T:
        await self._follower.latest(_CATCH_UP_S)
        return await self._follower.look(question)

    async def glance(self, question: Callable[[State], T]) -> T:
        return await self._follower.look(question)

    async def _copied(self) -> State:
        """Return a copy of the follower's state, for a request that has to fold the log itself."""
        await self._follower.latest(_CATCH_UP_S)
        taken = await self._follower.look(copy)
        return await asyncio.to_thread(restore, taken)

    async def app(self, name_or_id: str) -> App:
        """Return a copy, because the follower continues to fold."""
        taken = await self.look(lambda state: msgspec.msgpack.encode(find_app(state, name_or_id, self.user)))
        return _APP.decode(taken)


# --- a tally ----------------------------------------------------------------------------------------------------------


class Counted:
    """A tally next to the fold. It belongs to the state's thread."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._tally: Tally | None = None
        follower.on_ready.append(self._begin)

    def _begin(self, state: State) -> None:
        self._tally = Tally.begin(state)
        self._follower.observers.append(self._tally.see)

    def metrics(self, state: State, now: int) -> list[Metric]:
        """Return the cluster's metrics at `now` (UTC ns)."""
        return list(cluster_metrics(state, self._tally, now)) if self._tally is not None else []
