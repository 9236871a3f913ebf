"""The answers to a request: it is published as a record, and what the cluster says about it follows on the log."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from events.codec import decode
from events.kinds import Round

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.kinds import Event
    from events.log.interface import ReadableLog


async def facts_after(
    log: ReadableLog,
    seq: int,
    *,
    timeout: float,
    no_answer: Exception,
    subjects: Sequence[str] = (),
    renewed: bool = False,
) -> AsyncGenerator[Event, None]:
    """Yield the events after a record as they are stored, the facts of a master's round one by one, until the caller has its
    answer.  Raises `no_answer` after `timeout` seconds, or if `renewed` after as many without a record; and the log's errors.
    """
    clock = asyncio.get_running_loop().time
    ends = clock() + timeout
    async with contextlib.aclosing(log.read(after=seq, subjects=subjects, follow=True)) as batches:
        while True:
            try:
                async with asyncio.timeout_at(ends):
                    batch = await anext(batches, None)
            except TimeoutError:
                batch = None
            if batch is None:
                raise no_answer from None
            if renewed:
                ends = clock() + timeout
            for event in map(decode, batch):
                for fact in event.events if isinstance(event, Round) else (event,):
                    yield fact
