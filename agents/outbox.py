"""What a node publishes, on its way to the log and to the stream of progress.

*Facts* (`Outbox`) are kept in order, retried until stored, and deduplicated by their ids.  The queue is bounded.  When
it is half full, progress that will be superseded is left out; when it is full, publishers wait.

*Progress* between two marks (`ProgressFeed`): of each container only the newest report, and nothing twice.  Nothing
waits for it: a report that could not be stored is replaced by the next one.  If a cluster has no such stream, because
an earlier release made it, or if the server does not let this node write there, the reports between two marks are left
out: the log has the marks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from agents.delays import Repeats
from events import subjects
from events.appending import append_event
from events.codec import encode
from events.errors import code_of
from events.kinds import AppProgressed, ContainerDelayed, Event, ProgressLinesSkipped, SessionEnded
from events.log.records import LogRefused, LogUnavailable

if TYPE_CHECKING:
    from events.log.interface import EventLog
    from events.log.stores import Progress


# --- facts ------------------------------------------------------------------------------------------------------------

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


# --- progress ---------------------------------------------------------------------------------------------------------

_FEED_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_FEED_REFUSED_S = 300.0
"""Seconds until a server that refuses is tried again: an operator may have given it a new configuration."""
_MOST_SENT = 4096
"""Containers whose last report is remembered, to leave out unchanged ones."""


class ProgressFeed:
    """One per agent."""

    def __init__(self, progress: Progress, cluster: str, node: str) -> None:
        self._progress = progress
        self._cluster = cluster
        self._node = node
        self._waiting: dict[str, AppProgressed] = {}
        self._sent: dict[str, AppProgressed] = {}
        self._woken = asyncio.Event()

    def put(self, event: AppProgressed) -> None:
        """Hand on a report; an earlier one of the same container that still waits is left out."""
        container = event.id.rpartition(f".{AppProgressed.__name__}.")[0]
        if not _has_news(event, self._sent.get(container)):
            return
        self._waiting[container] = event
        self._woken.set()

    async def run(self) -> None:
        """Store reports without end."""
        pause = _FEED_PAUSE_S
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._store_all()
                pause = _FEED_PAUSE_S
            except LogUnavailable as error:
                _log.debug("progress is not stored", node=self._node, reason=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            except LogRefused as error:
                _log.warning(
                    "progress between two marks is not stored; an admin brings the server's configuration up to date with "
                    "`dorm init`",
                    node=self._node,
                    reason=str(error),
                )
                await asyncio.sleep(_FEED_REFUSED_S)

    async def _store_all(self) -> None:
        while self._waiting:
            container, event = next(iter(self._waiting.items()))
            subject = subjects.progress(self._cluster, self._node, event.app)
            # Taken away before it is stored, so that a later one is not lost; a failed one is replaced by the next.
            del self._waiting[container]
            await self._progress.put(subject, encode(event), msg_id=event.id)
            self._sent.pop(container, None)
            self._sent[container] = event
            if len(self._sent) > _MOST_SENT:
                del self._sent[next(iter(self._sent))]


def _has_news(event: AppProgressed, sent: AppProgressed | None) -> bool:
    if sent is None:
        return True
    return (event.step, event.loss, event.loss_is, event.samples_per_s, event.noise) != (
        sent.step, sent.loss, sent.loss_is, sent.samples_per_s, sent.noise
    )  # fmt: skip
