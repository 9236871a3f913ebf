"""Real masters for a test: one that leads for the length of a block, and what ends one that does not get to lead."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from dorm.master.sealing import LogAltered
from events import subjects
from events.codec import encode
from events.kinds import AppCancelRequested
from events.log.records import LogDamaged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from dorm.master.master import Master
    from events.log.interface import EventLog

PATIENCE_S = 40.0


@contextlib.asynccontextmanager
async def running(master: Master, *, may_end: bool = False) -> AsyncIterator[Master]:
    """Run a master from its election until the end of the block.  Raises what ends it before it leads; only with `may_end` may
    it end by itself later."""
    task, elected = asyncio.create_task(master.run()), asyncio.create_task(master.elected.wait())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait({task, elected}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield master
    finally:
        task.cancel()
        elected.cancel()
        await asyncio.wait({task, elected})
    assert may_end or task.cancelled(), task.exception()


async def refusal(leading: AbstractAsyncContextManager[Master]) -> str:
    """Return why a master refuses to lead a log that lost records or was altered."""
    with pytest.raises((ExceptionGroup, LogAltered, LogDamaged)) as ended:
        async with leading:
            pass
    error: BaseException = ended.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LogAltered | LogDamaged), error
    return str(error)


async def say(log: EventLog, cluster: str, count: int, *, reason: str = "", body: bytes = b"") -> None:
    """Append records of a client that change nothing: requests that name no app, or `body` as it is."""
    for number in range(count):
        said = body or encode(AppCancelRequested(app=f"none-{number}", reason=reason))
        await log.append(subjects.fact(cluster, "AppCancelRequested", "u"), said)


async def folded(master: Master, seq: int) -> None:
    """Wait until a master has folded the log up to `seq`."""
    async with asyncio.timeout(PATIENCE_S):
        while master.state.seq < seq:  # noqa: ASYNC110 - a master announces to no one how far it is
            await asyncio.sleep(0.005)
