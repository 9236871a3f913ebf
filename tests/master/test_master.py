"""The master's shell: who leads, and its work when nothing happens."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from dorm.master.master import Master
from events import subjects
from events.codec import decode, encode
from events.kinds import (
    AppAccepted,
    AppSubmitted,
    Event,
    GenerationReleased,
    IdleTicked,
    NodeLost,
    NodeRecovered,
    NodeReported,
    PolicyChanged,
    Round,
)
from events.log.memory import MemoryBus, MemoryLog
from tests.core.records import document, joined
from tests.errors import codes_in
from tests.master.leading import running

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager


async def test_a_deposed_master_with_nothing_to_publish_stops_too() -> None:
    log, bus = MemoryLog(time.time_ns), MemoryBus(time.time_ns)
    first, second = (Master(log, bus, "local", name=name, clock=time.time_ns) for name in ("first", "second"))
    leading = asyncio.create_task(first.run())
    await first.elected.wait()
    following = asyncio.create_task(second.run())
    try:
        async with asyncio.timeout(20.0):
            with pytest.raises(ExceptionGroup) as ended:
                await leading
        assert codes_in(ended.value) == ["master.deposed"]
        assert second.elected.is_set()
        assert not following.done()
        assert await log.end() == 2
    finally:
        leading.cancel()
        following.cancel()
        await asyncio.wait([leading, following])


@pytest.mark.soak
async def test_heartbeats_of_another_machine_keep_no_node_alive() -> None:
    """Neither those that are heard nor the last one that is stored."""
    log, bus = MemoryLog(time.time_ns), MemoryBus(time.time_ns)
    await say(log, PolicyChanged(node_grace_s=1), "operator")
    await say(log, joined("a", identity="first"), "a")
    async with leading(log, "m", bus):
        for identity, awaited in (("other", NodeLost), ("first", NodeRecovered)):
            beating = asyncio.create_task(beat(bus, "a", encode(NodeReported(node="a", identity=identity))))
            try:
                await first_with(log, awaited)
            finally:
                beating.cancel()
                await asyncio.wait([beating])


def leading(log: MemoryLog, name: str, bus: MemoryBus | None = None) -> AbstractAsyncContextManager[Master]:
    return running(Master(log, bus or MemoryBus(time.time_ns), "local", name=name, clock=time.time_ns))


async def say(log: MemoryLog, event: Event, who: str) -> None:
    await log.append(subjects.fact("local", type(event).__name__, who), encode(event))


async def first_with(log: MemoryLog, kind: type[Event]) -> Round:
    """The first round that has such a fact."""
    async with asyncio.timeout(30.0):
        async for batch in log.read(follow=True):
            for event in map(decode, batch):
                if isinstance(event, Round) and any(isinstance(fact, kind) for fact in event.events):
                    return event
    raise AssertionError("a log that is followed does not end")


async def test_a_master_that_took_over_looks_again_when_nothing_happens() -> None:
    log = MemoryLog(time.time_ns)
    await say(log, PolicyChanged(policy="static", idle_s=3), "operator")
    async with leading(log, "first"):
        await say(log, joined("a"), "a")
        await say(log, AppSubmitted(spec=document("app")), "ann")
        await first_with(log, GenerationReleased)
    async with leading(log, "second") as second:
        tick = await first_with(log, IdleTicked)
        assert (tick.by, tick.allocated) == ("second", True)
        assert tick.at - second.state.dirty_at >= 3_000_000_000


async def beat(bus: MemoryBus, node: str, body: bytes = b"") -> None:
    """More often than the shortest grace, as an agent does."""
    while True:
        await bus.publish_report(subjects.report("local", node), body)
        await asyncio.sleep(0.2)


async def test_a_lost_node_recovers_with_its_heartbeat_and_not_with_a_new_master() -> None:
    log, bus = MemoryLog(time.time_ns), MemoryBus(time.time_ns)
    await say(log, PolicyChanged(heartbeat_s=0.3, node_grace_s=1), "operator")
    await say(log, joined("a"), "a")
    async with leading(log, "first"):
        await first_with(log, NodeLost)
    async with leading(log, "second", bus) as second:
        await say(log, AppSubmitted(spec=document("app")), "ann")
        await first_with(log, AppAccepted)
        assert second.state.nodes["a"].condition == "lost"
        beating = asyncio.create_task(beat(bus, "a"))
        try:
            await first_with(log, NodeRecovered)
        finally:
            beating.cancel()
            await asyncio.wait([beating])
