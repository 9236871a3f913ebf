"""Which apps wait long.  Nothing happens on the log while an app waits, so its wait becomes an event here, which is delivered
like others.

A watch folds the log (`dorm.live_fold`).  It publishes a wait once for each webhook's time; the events are on the log, so a
restart repeats none. Two deliverers may publish the same wait at the same moment, each under its own user.  The first of the
two events on the log counts, and every deliverer ignores the other (`left_out`).  A watch measures by log time, extrapolated
between records, so a wrong clock reports nothing early.
"""

from __future__ import annotations

import asyncio
import contextlib
from copy import copy
from typing import TYPE_CHECKING

import msgspec

from dorm.core.gates import closed
from dorm.core.state import State
from dorm.live_fold import LiveFold, NotFolded, Thread, newest_state
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
    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.kinds import Event
    from events.log.interface import EventLog
    from events.log.records import Record
    from events.positions import Logged

_LOOK_S = 5.0
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
        self._published: dict[_Wait, int] = {}
        """Waits that are on the log, and the sequence of the first event about each."""
        self._voids: dict[int, None] = {}
        self._thread = Thread("dorm-webhooks")
        self._fold = LiveFold(log, begin=self._open, thread=self._thread)
        self._fold.on_begin.append(lambda _state: self._fold.observers.append(self._see))

    async def left_out(self, one: Logged) -> bool:
        """Return whether an event, once folded, belongs to a void round or repeats an earlier one."""
        if one.round is None and not isinstance(one.event, AppWaitsLong):
            return False
        seq = one.position.seq
        await self._fold.reach(seq)
        if isinstance(one.event, AppWaitsLong):
            return self._published.get(_wait_of(one.event), seq) != seq
        return seq in self._voids

    async def app_after(self, seq: int, app_id: str) -> App | None:
        """Return an app once this record is folded; None if the cluster keeps it no longer."""
        while True:
            await self._fold.reach(seq)
            with contextlib.suppress(NotFolded):
                return await self._fold.look(lambda state: copy(state.apps.get(app_id)))

    async def run(self) -> None:
        """Follow the log until cancelled.  Raises LogClosed, LogRefused."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._fold.run())
                while True:
                    reached = self._fold.seq
                    if self._fold.ready and reached >= self._fold.end:
                        await self._publish_waits()
                    if self._fold.seq == reached:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(_LOOK_S):
                                await self._fold.moved()
        finally:
            self._thread.close()

    async def _open(self) -> State:
        state = await newest_state(self._log)
        waits = subjects.fact_pattern(self._cluster, AppWaitsLong.__name__)
        async with contextlib.aclosing(self._log.read(after=await self._log.start(), subjects=[waits])) as batches:
            async for batch in batches:
                for record in batch:
                    self._note(decode(record), record.seq)
        return state

    def _see(self, _state: State, record: Record, event: Event, folded: Folded) -> None:
        if folded == "void":
            self._voids[record.seq] = None
            while len(self._voids) > _MOST_VOIDS:
                del self._voids[next(iter(self._voids))]
        self._note(event, record.seq)

    def _note(self, event: object, seq: int) -> None:
        if isinstance(event, AppWaitsLong):
            wait = _wait_of(event)
            # Its own event is noted when it is stored, an earlier one of another deliverer only when that is folded.
            self._published[wait] = min(seq, self._published.get(wait, seq))
            while len(self._published) > _MOST_WAITS:
                del self._published[next(iter(self._published))]

    async def _publish_waits(self) -> None:
        limits = list(self._after_s())
        if not limits:
            return
        since_folded_s = asyncio.get_running_loop().time() - self._fold.folded_at

        def new(state: State) -> list[AppWaitsLong]:
            now = state.time + int(since_folded_s * SECOND)
            return [event for event in overdue(state, now, limits) if _wait_of(event) not in self._published]

        with contextlib.suppress(NotFolded):
            for event in await self._fold.look(new, "waits"):
                await self._publish(msgspec.structs.replace(event, at=self._clock(), by=self._who))

    async def _publish(self, event: AppWaitsLong) -> None:
        subject = subjects.fact(self._cluster, AppWaitsLong.__name__, self._who)
        stored = await until_answered(lambda: append_event(self._log, subject, event), "reporting a wait")
        self._note(event, stored.seq)
