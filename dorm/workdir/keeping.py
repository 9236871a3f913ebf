"""Removes parts of shipped folders that no app needs any more, and parts beyond tenants' quotas: next to a master, and only
while it leads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING

import structlog

from dorm.workdir.quotas import enforce_quotas
from dorm.workdir.using import remove_unneeded
from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from dorm.core.state import State
    from dorm.master.master import Master
    from events.log.stores import Files

_EVERY_S = 60.0
"""Between two checks of quotas."""
_LOOKS = 60
"""One check in this many also removes parts that no app needs."""
_log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def keeping_beside(master: Master, files: Files) -> AsyncIterator[None]:
    """Check once a minute, while the body runs."""
    keeping = asyncio.create_task(_keep(files, lambda: master.state, lambda: master.leads), name="files")
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def _keep(files: Files, state: Callable[[], State], leads: Callable[[], bool]) -> None:
    for look in itertools.count(1):
        await asyncio.sleep(_EVERY_S)
        if not leads():
            continue
        try:
            limits = await files.limits()
            for tenant, beyond in (await enforce_quotas(files, state(), limits)).items():
                _log.warning(
                    "a tenant wrote more than its quota", tenant=tenant, count=beyond.parts, bytes=beyond.bytes
                )
            if look % _LOOKS:
                continue
            removed = await remove_unneeded(files, state(), min(time.time_ns(), state().time), limits.keep_s)
        except DormError as error:
            _log.info("the store of shipped folders can't be looked at", reason=str(error))
        else:
            if removed.parts:
                _log.info("parts of shipped folders are removed", count=removed.parts, bytes=removed.bytes)
