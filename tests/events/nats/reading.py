"""Reading a log whose servers were just killed: they may be busy with each other, and masters and agents wait for that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from events.log.records import until_answered

if TYPE_CHECKING:
    from events.log.interface import ReadableLog
    from events.log.records import Record

_PATIENCE_S = 60.0


async def all_records(log: ReadableLog) -> list[Record]:
    """Return the whole log, read again from the start whenever the servers do not answer."""

    async def read() -> list[Record]:
        return [record async for batch in log.read() for record in batch]

    async with asyncio.timeout(_PATIENCE_S):
        return await until_answered(read, "reading the log")
