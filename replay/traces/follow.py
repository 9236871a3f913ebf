"""Reads a log, and hands on the spans of its apps in batches."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from events import subjects
from replay.moments import AtSequence
from replay.traces.otlp import BATCH
from replay.traces.spans import Tracer
from replay.travel.travel import fold, state_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from events.log.interface import ReadableLog
    from replay import Progress
    from replay.moments import Moment
    from replay.traces.spans import Span


async def cluster_of(log: ReadableLog) -> str:
    """Return the cluster's name as the log's records have it, so that an archive gives the same ids as the cluster; "" for an
    empty log."""
    first = await log.record_at(await log.start() + 1)
    return subjects.cluster_of(first.subject) if first is not None else ""


async def export_spans(
    log: ReadableLog,
    cluster: str,
    send: Callable[[list[Span]], Awaitable[None]],
    *,
    since: Moment | None = None,
    follow: bool = False,
    progress: Progress | None = None,
) -> int:
    """Pass every span that ends after `since` (default: the log's start) to `send`, at most `BATCH` at once, and return how
    many there were.  With `follow`, it continues with the log, without end, and holds nothing back.

    While `send` runs, nothing more is read, so a slow or absent receiver costs no memory.  Raises as
    `state_at` and `send` do."""
    found: list[Span] = []
    tracer = Tracer(cluster, found.append)
    end = await log.end()
    state = await state_at(log, AtSequence(await log.start()) if since is None else since)
    tracer.begin(state)
    first, sent = state.seq, 0
    async with aclosing(log.read(after=state.seq, follow=follow)) as batches:
        async for batch in batches:
            await asyncio.to_thread(fold, state, batch, batch[-1].seq, None, tracer.see)
            while len(found) >= BATCH or (found and follow and state.seq >= end):
                await send(found[:BATCH])
                sent += len(found[:BATCH])
                del found[:BATCH]
            if progress is not None:
                progress(min(state.seq, end) - first, end - first)
    if found:
        await send(found)
    return sent + len(found)
