"""What apps had reported by a moment, beside the log: laid over the state there for people, as `ps` does for now.

The log has a mark of each app that works about once a minute, so the reports of the last minute before the moment say all that
is newer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from dorm.core.query.reported import newest_of
from events.log.progress import upto
from events.log.records import LogRefused, LogUnavailable
from events.quantities import SECOND
from replay.moments import AtTime, BeforeEnd
from replay.travel.travel import time_of

if TYPE_CHECKING:
    from dorm.core.query.reported import Newest
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from replay.moments import Moment

_MARK_S = 65
"""Seconds within which the log has a mark of an app that works (`agents.progress.watermarks`)."""
_PATIENCE_S = 10.0


async def reported_at(log: ReadableLog, state: State, moment: Moment | None) -> Newest:
    """Return the newest report of each app at a moment, by default now; empty where the stream can't be read."""
    with contextlib.suppress(LogUnavailable, LogRefused, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            if moment is None:
                return newest_of(await log.progress.newest())
            time = state.time
            if isinstance(moment, AtTime):
                time = moment.time
            elif isinstance(moment, BeforeEnd):
                time = await time_of(log, await log.end()) - moment.span
            return newest_of(await upto(log.progress, time, time - _MARK_S * SECOND))
    return {}
