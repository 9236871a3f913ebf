"""The master's shell: who leads."""

from __future__ import annotations

import asyncio
import time

import pytest

from dorm.master import Deposed, Master
from events.memory import MemoryBus, MemoryLog


async def test_a_deposed_master_that_has_nothing_to_say_stops_too() -> None:
    log, bus = MemoryLog(time.time_ns), MemoryBus(time.time_ns)
    first, second = (Master(log, bus, "local", name=name, clock=time.time_ns) for name in ("first", "second"))
    leading = asyncio.create_task(first.run())
    await first.elected.wait()
    following = asyncio.create_task(second.run())
    try:
        async with asyncio.timeout(20.0):
            with pytest.raises(ExceptionGroup) as ended:
                await leading
        assert ended.group_contains(Deposed, match="another master leads since epoch 2; this one stops")
        assert second.elected.is_set()
        assert not following.done()
        assert await log.end() == 2
    finally:
        leading.cancel()
        following.cancel()
        await asyncio.wait([leading, following])
