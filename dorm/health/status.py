"""Answers requests for this master's status.  Masters that follow publish nothing on the log, so commands ask them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from agents.status import disks_of
from events import subjects
from events.log.records import LogError
from events.logger import Logger
from events.requests import MasterStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from dorm.master.master import Master
    from events.log.interface import Answerer, Bus, ReadableLog

_END_S = 0.5
_log = Logger(__name__)


@contextlib.asynccontextmanager
async def answering_status(
    bus: Bus,
    cluster: str,
    master: Master,
    log: ReadableLog,
    *,
    build: str,
    clock: Callable[[], int],
    folders: Sequence[Path] = (),
) -> AsyncIterator[None]:
    """Answer while the context is open.  `folders` are those whose file systems matter to the master; `clock` returns UTC
    ns."""

    async def status(question: bytes) -> AsyncIterator[bytes]:
        del question
        end = None
        with contextlib.suppress(LogError, TimeoutError):
            async with asyncio.timeout(_END_S):
                end = await log.end()
        constant = MasterStatus(
            name=master.name,
            build=build,
            at=clock(),
            leading=master.leads,
            epoch=master.state.epoch,
            seq=master.state.seq,
            end=end,
            lease_left_s=master.lease_left_s,
            disks=await disks_of(folders),
        )
        yield msgspec.json.encode(msgspec.structs.replace(constant, at=clock()))

    answering = asyncio.create_task(_answer(bus, subjects.ask_masters(cluster), status))
    try:
        yield
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def _answer(bus: Bus, subject: str, status: Answerer) -> None:
    """A server with older permissions forbids it; that ends only this task."""
    try:
        await bus.answer_all(subject, status)
    except LogError as error:
        _log.warning("questions how this master is are not answered", reason=str(error))
