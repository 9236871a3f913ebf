"""The apps' reports beside the log by a moment: laid over the state at that moment for users, as `ps` does for the
present.

The log has a mark of each working app about once a minute, so the reports of the last minute before the moment have
everything newer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from dorm.core.progress import newest_of
from events.log.records import LogRefused, LogUnavailable
from events.log.stores import upto
from events.quantities import SECOND
from replay.moments import AtSequence, time_at

if TYPE_CHECKING:
    from dorm.core.progress import Newest
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from replay.moments import Moment

_MARK_S = 65
"""Seconds within which the log has a mark of a working app (`agents.progress`)."""
_PATIENCE_S = 10.0


async def reported_at(log: ReadableLog, state: State, moment: Moment | None) -> Newest:
    """Return the newest report of each app at a moment, by default now; empty if the stream can't be read."""
    with contextlib.suppress(LogUnavailable, LogRefused, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            if moment is None:
                return newest_of(await log.progress.newest())
            time = state.time
            if not isinstance(moment, AtSequence):
                time = await time_at(log, moment)
            return newest_of(await upto(log.progress, time, time - _MARK_S * SECOND))
    return {}
