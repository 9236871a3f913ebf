"""A log read through once, batch by batch in a thread; where it is broken is a result and no error."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from dorm.core.fold.evolve import GapError
from events.log.records import LogDamaged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from events.log.interface import EventLog
    from events.log.records import Record

UNKNOWN = 2**63 - 1
"""Where a log ends whose end can't be known."""


class Broken(msgspec.Struct, frozen=True):
    """Nothing can be read at this sequence, and why."""

    seq: int
    what: str


async def end_of(log: EventLog) -> int:
    """The log's end, UNKNOWN where it is damaged: reading on will meet what is broken, and say where."""
    try:
        return await log.end()
    except LogDamaged:
        return UNKNOWN


async def read_through(
    log: EventLog,
    after: int,
    end: int,
    take: Callable[[Record], bool],
    then: Callable[[int], Awaitable[None]],
) -> Broken | None:
    """Give the records after one sequence up to another to `take` until it returns true, which runs in a thread; `then` is
    told after each batch how far it is.

    `take` may raise GapError.  Raises what `log.read` raises, but for damage."""
    stop = end <= after
    done = after

    def take_all(batch: list[Record]) -> bool:
        nonlocal done
        for record in batch:
            if stop or record.seq > end or take(record):
                return True
            done = record.seq
        return False

    if stop:
        return None
    try:
        async with aclosing(log.read(after=after)) as batches:
            async for batch in batches:
                ended = await asyncio.to_thread(take_all, batch)
                await then(done)
                if ended or done >= end:
                    break
    except LogDamaged as error:
        return Broken(done + 1, f"the log is damaged: {error}")
    except GapError as error:
        return Broken(done + 1, f"sequences are not contiguous: {error}")
    finally:
        stop = True  # For a thread that goes on when nobody waits for it any more.
    return None
