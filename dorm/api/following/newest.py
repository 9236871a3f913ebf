"""What apps reported beside the log, the newest of each, merged into answers about the present."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from dorm.client.reports import followed
from events.log.records import LogClosed
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.progress import Newest
    from events.log.interface import ReadableLog

_PAUSE_S = 0.5
"""Between two looks at what has come: answers are made again after each."""
_AGAIN_S = 5.0
_KEPT_NS = 180 * SECOND
"""Of an app that has not reported for this long, the log has the last report."""


class NewestReports:
    """Follows the stream of progress.  If it can't be read, the log's marks are the newest."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self.found: Newest = {}
        self.turn = 0
        """Counts the changes of `found`."""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            with contextlib.suppress(LogClosed):
                async with contextlib.aclosing(followed(self._log)) as changes:
                    async for newest in changes:
                        last = max((one.time for one in newest.values()), default=0)
                        self.found = {app: one for app, one in newest.items() if one.time > last - _KEPT_NS}
                        self.turn += 1
                        await asyncio.sleep(_PAUSE_S)
            await asyncio.sleep(_AGAIN_S)
