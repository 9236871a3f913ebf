"""Progress on its way to the stream beside the log: of each container only the newest report, and nothing twice.

Nothing waits for it: a report that could not be stored is replaced by the next one.  If a cluster has no such stream,
because an earlier release made it, or if the server does not let this node write there, the reports between two marks are
left out: the log has the marks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from events import subjects
from events.codec import encode
from events.kinds import AppProgressed
from events.log.records import LogRefused, LogUnavailable

if TYPE_CHECKING:
    from events.log.stores import Progress

_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_REFUSED_S = 300.0
"""Seconds until a server that refuses is tried again: an operator may have given it a new configuration."""
_MOST_SENT = 4096
"""Containers whose last report is remembered, to leave out unchanged ones."""
_log = structlog.get_logger(__name__)


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
        pause = _PAUSE_S
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._store_all()
                pause = _PAUSE_S
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
                await asyncio.sleep(_REFUSED_S)

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
