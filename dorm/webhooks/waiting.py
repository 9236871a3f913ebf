"""Which apps wait long.  Nothing happens on the log while an app waits, so its wait becomes an event here, which is delivered
like others.

A watch folds the log.  It publishes a wait once for each webhook's time; the events are on the log, so a restart repeats none.
Two deliverers may publish the same wait at the same moment, each under its own user.  The first of the two events on the log
counts, and every deliverer ignores the other (`left_out`).  A watch measures by log time, extrapolated between records, so a
wrong clock reports nothing early.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from dorm.core.fold.evolve import evolve
from dorm.core.gates import closed
from dorm.core.state import State
from dorm.snapshots import newest
from events import subjects
from events.appending import append_event
from events.codec import decode
from events.kinds import AppWaitsLong
from events.limits import clipped
from events.log.records import until_answered
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dorm.core.app import App
    from events.log.interface import EventLog
    from events.log.records import Record
    from events.positions import Logged

_LOOK_S = 5.0
_QUEUE = 4
_MOST_VOIDS = 10_000
_MOST_WAITS = 100_000
"""Waits that are remembered, the latest."""


def overdue(state: State, now: int, after_s: Iterable[float]) -> Iterator[AppWaitsLong]:
    """Yield the waits of live apps that have lasted for one of these times (seconds).  `now` is log time, UTC ns."""
    for limit in sorted(set(after_s)):
        for app in state.live_apps():
            since = app.waiting_since
            if since and now - since >= limit * SECOND and not closed(app, now):
                reason = app.waiting
                yield AppWaitsLong(
                    id=f"waits.{app.id}.{since}.{limit}",
                    app=app.id,
                    since=since,
                    after_s=limit,
                    code=reason.code[:64] if reason is not None else "",
                    reason=clipped(reason.text) if reason is not None else "",
                )


_Wait = tuple[str, int, float]
"""An app, since when it waits, and the time after which that is published."""


def _wait_of(event: AppWaitsLong) -> _Wait:
    return event.app, event.since, event.after_s


class Watch:
    """Folds a cluster's log, publishes long waits, and knows which rounds are void."""

    def __init__(
        self, log: EventLog, cluster: str, who: str, *, clock: Callable[[], int], after_s: Callable[[], Iterable[float]]
    ) -> None:
        """`after_s` returns the times (seconds) that webhooks name now."""
        self._log = log
        self._cluster = cluster
        self._who = who
        self._clock = clock
        self._after_s = after_s
        self._state = State()
        self._said: dict[_Wait, int] = {}
        """Waits that are on the log, and the sequence of the first event that says so."""
        self._voids: dict[int, None] = {}
        self._records: asyncio.Queue[list[Record]] = asyncio.Queue(_QUEUE)
        self._folded = asyncio.Condition()
        self._folded_at = 0.0
        self._reached = 0
        """The last record of the last batch that is folded: the state itself may be in the middle of one, in a thread."""

    async def left_out(self, one: Logged) -> bool:
        """Return whether an event, once folded, belongs to a void round or repeats an earlier one."""
        if one.round is None and not isinstance(one.event, AppWaitsLong):
            return False
        seq = one.position.seq
        async with self._folded:
            await self._folded.wait_for(lambda: self._reached >= seq)
        if isinstance(one.event, AppWaitsLong):
            return self._said.get(_wait_of(one.event), seq) != seq
        return seq in self._voids

    async def app_after(self, seq: int, app_id: str) -> App | None:
        """Return an app once this record is folded; None if the cluster keeps it no longer."""
        async with self._folded:
            await self._folded.wait_for(lambda: self._reached >= seq)
        return self._state.apps.get(app_id)

    async def run(self) -> None:
        """Follow the log until cancelled.  Raises LogClosed, LogDamaged, LogRefused."""
        await until_answered(self._open, "reading the log for webhooks")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read())
            while True:
                batch = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        batch = await self._records.get()
                if batch is not None:
                    await asyncio.to_thread(self._fold, batch)
                    self._folded_at, self._reached = asyncio.get_running_loop().time(), self._state.seq
                    async with self._folded:
                        self._folded.notify_all()
                if self._records.empty():
                    await self._say()

    async def _open(self) -> None:
        found = await newest(self._log)
        self._state = found[1] if found is not None else State()
        said = subjects.fact_pattern(self._cluster, AppWaitsLong.__name__)
        async with contextlib.aclosing(self._log.read(after=await self._log.start(), subjects=[said])) as batches:
            async for batch in batches:
                for record in batch:
                    self._note(decode(record), record.seq)
        self._folded_at, self._reached = asyncio.get_running_loop().time(), self._state.seq

    async def _read(self) -> None:
        async for batch in self._log.read(after=self._state.seq, follow=True):
            await self._records.put(batch)

    def _fold(self, batch: list[Record]) -> None:
        for record in batch:
            event, folded = evolve(self._state, record)
            if folded == "void":
                self._voids[record.seq] = None
            self._note(event, record.seq)
        while len(self._voids) > _MOST_VOIDS:
            del self._voids[next(iter(self._voids))]

    def _note(self, event: object, seq: int) -> None:
        if isinstance(event, AppWaitsLong):
            wait = _wait_of(event)
            # Its own event is noted when it is stored, an earlier one of another deliverer only when that is folded.
            self._said[wait] = min(seq, self._said.get(wait, seq))
            while len(self._said) > _MOST_WAITS:
                del self._said[next(iter(self._said))]

    async def _say(self) -> None:
        wanted = list(self._after_s())
        if not wanted:
            return
        now = self._state.time + int((asyncio.get_running_loop().time() - self._folded_at) * SECOND)
        for event in overdue(self._state, now, wanted):
            if _wait_of(event) not in self._said:
                await self._state_wait(msgspec.structs.replace(event, at=self._clock(), by=self._who))

    async def _state_wait(self, event: AppWaitsLong) -> None:
        subject = subjects.fact(self._cluster, AppWaitsLong.__name__, self._who)
        stored = await until_answered(lambda: append_event(self._log, subject, event), "reporting a wait")
        self._note(event, stored.seq)
