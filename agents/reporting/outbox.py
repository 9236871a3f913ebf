"""Facts on their way to the log: kept in order, retried until stored, deduplicated by their ids.

The queue is bounded.  When it is half full, progress that will be superseded is left out; when it is full, publishers wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from agents.repeats import Repeats
from events import subjects
from events.appending import append_event
from events.errors import code_of
from events.kinds import AppProgressed, ContainerDelayed, Event, ProgressLinesSkipped, SessionEnded
from events.log.records import LogRefused, LogUnavailable

if TYPE_CHECKING:
    from events.log.interface import EventLog

BOUND = 4096
_PAUSE_S = 2.0
_REFUSED_S = 5.0
_OPTIONAL = (ContainerDelayed, ProgressLinesSkipped, SessionEnded)
"""Facts for people: a server whose permissions are of an earlier release refuses them, and nothing else may wait for that."""
_log = structlog.get_logger(__name__)


class Outbox:
    """One per agent.  Facts must have an id."""

    def __init__(self, log: EventLog, cluster: str, who: str) -> None:
        self._log = log
        self._cluster = cluster
        self._who = who
        self._queue: asyncio.Queue[Event] = asyncio.Queue(BOUND)
        self._storing = 0
        self._repeats = Repeats()

    async def put(self, event: Event, *, last: bool = True) -> None:
        """Queue a fact; wait while the queue is full.  With `last` no later fact of its kind will supersede it."""
        if not last and isinstance(event, AppProgressed) and self._queue.qsize() > BOUND // 2:
            return
        await self._queue.put(event)

    @property
    def waiting(self) -> int:
        """How many facts the log does not have yet."""
        return self._queue.qsize() + self._storing

    async def flush(self) -> None:
        """Wait until everything that was put is stored."""
        await self._queue.join()

    async def run(self) -> None:
        """Store facts one after the other, without end."""
        while True:
            event = await self._queue.get()
            self._storing = 1
            await self._store(event)
            self._storing = 0
            self._queue.task_done()

    async def _store(self, event: Event) -> None:
        subject = subjects.fact(self._cluster, type(event).__name__, self._who)
        pause = 0.1
        while True:
            try:
                await append_event(self._log, subject, event)
            except LogUnavailable as error:
                if self._due("waits", error):
                    _log.warning("a fact waits for the log", kind=type(event).__name__, reason=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_S)
            except LogRefused as error:
                if isinstance(event, _OPTIONAL):
                    _log.warning("the log refuses a fact, which is left out", id=event.id, reason=str(error))
                    return
                # A server whose disk is full refuses too; if the fact were dropped, the master would wait for it
                # indefinitely.
                if self._due("refused", error):
                    _log.error("the log refuses a fact", kind=type(event).__name__, id=event.id, reason=str(error))
                await asyncio.sleep(_REFUSED_S)
            else:
                if self._repeats.over("waits") | self._repeats.over("refused"):
                    _log.warning("the log takes facts again", waiting=self.waiting)
                return

    def _due(self, line: str, error: Exception) -> bool:
        """Return whether to log a line that repeats while a fault lasts."""
        return self._repeats.due(line, asyncio.get_running_loop().time(), code_of(error))
