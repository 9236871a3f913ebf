"""The apps' reports beside the log, as clients see them: the newest of each app, now and as it changes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from dorm.core.progress import newest_of
from events.log.records import LogRefused, LogUnavailable
from events.log.stores import EVERY_APP

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from dorm.core.progress import Newest
    from events.log.interface import ReadableLog

_PATIENCE_S = 3.0


async def newest(log: ReadableLog, app: str = EVERY_APP) -> Newest:
    """Return the newest report of each app, or of one by its id.  Empty if the stream can't be read: then the log's marks
    are the newest, about a minute old at most."""
    with contextlib.suppress(LogUnavailable, LogRefused, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            return newest_of(await log.progress.newest(app))
    return {}


async def followed(log: ReadableLog) -> AsyncGenerator[Newest, None]:
    """Yield the newest reports, first as they are now and then with each further one, until the connection is closed; end at
    once if the stream can't be read."""
    with contextlib.suppress(LogUnavailable, LogRefused):
        end, found = await log.progress.end(), await newest(log)
        yield found
        async with contextlib.aclosing(log.progress.read(after=end, follow=True)) as batches:
            async for batch in batches:
                found = found | newest_of(batch)
                yield found
