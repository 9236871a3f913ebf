"""Reads a log once, batch by batch in a thread; damage is a result, not an error."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from dorm.core.evolve import GapError
from events.log.records import LogDamaged
from events.subjects import cluster_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from events.log.interface import ReadableLog
    from events.log.records import Record

UNKNOWN = 2**63 - 1
"""The end of a log whose end is unknown."""


class Broken(msgspec.Struct, frozen=True):
    """The sequence at which nothing can be read, and why."""

    seq: int
    what: str


async def end_of(log: ReadableLog) -> int:
    """Return the log's end, or UNKNOWN if the log is damaged: reading then meets the damage and locates it."""
    try:
        return await log.end()
    except LogDamaged:
        return UNKNOWN


async def read_through(
    log: ReadableLog,
    after: int,
    end: int,
    take: Callable[[Record], bool],
    then: Callable[[int], Awaitable[None]],
) -> Broken | None:
    """Pass the records between two sequences to `take`, in a thread, until it returns true; call `then` after each batch with
    the last sequence done.

    `take` may raise GapError.  Raises what `log.read` raises, except for damage."""
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
        stop = True  # For a thread that still runs when its caller no longer waits for it.
    return None


async def cluster_name(log: ReadableLog) -> str:
    """Return the cluster's name from the first record's subject; '' for an empty log."""
    async with aclosing(log.read(after=await log.start())) as batches:
        async for batch in batches:
            return cluster_of(batch[0].subject)
    return ""
