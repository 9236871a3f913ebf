"""A thread keeps the masters' lease while the master's loop is busy, and not for a loop that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

import dorm.master.lease
from dorm.master.lease import Lease, standing_in
from dorm.master.master import Master
from events.log.leadership import Held, MemoryLeadership
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import LogUnavailable
from events.nats.connection import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from events.log.leadership import Leadership
    from tests.lab.machines.nats_server import NatsServer

PATIENCE_S = 30.0
TTL_S = 0.4


class Counted(MemoryLeadership):
    """Counts renewals by thread."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals: dict[str, int] = {}

    async def renew(self, held: Held) -> Held | None:
        name = threading.current_thread().name
        self.renewals[name] = self.renewals.get(name, 0) + 1
        return await super().renew(held)

    @property
    def by_stand_in(self) -> int:
        return self.renewals.get("lease", 0)

    @contextlib.asynccontextmanager
    async def apart(self) -> AsyncIterator[Leadership]:
        yield self


def block_until(condition: Callable[[], bool]) -> None:
    """Keep the loop that calls it, as a long fold does."""
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - a lease tells nobody that it has changed
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def kept(leadership: Counted) -> AsyncIterator[Lease]:
    """A lease that this loop keeps, with a stand-in."""
    lease = Lease(leadership, "a", TTL_S)
    await lease.win()
    async with standing_in(lease, leadership.apart):
        keeping = asyncio.create_task(lease.keep())
        await until(lambda: bool(leadership.renewals))
        yield lease
        keeping.cancel()
        await asyncio.wait([keeping])


async def test_a_loop_that_is_busy_for_longer_than_the_lease_keeps_it() -> None:
    leadership = Counted()
    async with kept(leadership) as lease:
        before = leadership.by_stand_in
        block_until(lambda: leadership.by_stand_in >= before + 8)
        assert lease.held
        found = await leadership.look()
        assert found is not None
        assert found.holder == "a"
        own = sum(leadership.renewals.values()) - leadership.by_stand_in
        await until(lambda: sum(leadership.renewals.values()) - leadership.by_stand_in >= own + 2)


async def test_a_loop_that_hangs_loses_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dorm.master.lease, "LONGEST_HANG_S", 2 * TTL_S)
    monkeypatch.setattr(dorm.master.lease, "_HANGS", 2)
    leadership = Counted()
    async with kept(leadership) as lease:
        block_until(lambda: not lease.held)
        assert leadership.by_stand_in > 0, "it was renewed for a while"
        before = leadership.by_stand_in
        looked = time.monotonic()
        block_until(lambda: time.monotonic() > looked + TTL_S)
        assert leadership.by_stand_in == before
        await until(lambda: lease.held)


async def test_a_stand_in_renews_nothing_that_another_master_has() -> None:
    leadership = Counted()
    lease = Lease(leadership, "a", TTL_S)
    await lease.win()
    async with standing_in(lease, leadership.apart):
        other = await leadership.take("b", 3600.0, await leadership.look())
        block_until(lambda: leadership.by_stand_in > 0 and not lease.held)
        assert await leadership.look() == other


async def test_a_stand_in_that_cannot_connect_is_tried_again_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dorm.master.lease, "_AGAIN_S", 0.01)
    tries = 0

    @contextlib.asynccontextmanager
    async def apart() -> AsyncIterator[Leadership]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise LogUnavailable("nobody answers")
        yield MemoryLeadership()

    lease = Lease(MemoryLeadership(), "a", TTL_S)
    await lease.win()
    async with standing_in(lease, apart):
        await until(lambda: tries == 3)


async def test_a_busy_master_is_not_elected_again() -> None:
    leadership, log = Counted(), MemoryLog(time.time_ns)
    master = Master(
        log, MemoryBus(time.time_ns), "local", name="a", clock=time.time_ns,
        leadership=leadership, lease_s=TTL_S, apart=leadership.apart,
    )  # fmt: skip
    running = asyncio.create_task(master.run())
    await until(lambda: master.leads and bool(leadership.renewals))
    block_until(lambda: leadership.by_stand_in >= 8)
    assert master.leads
    running.cancel()
    await asyncio.wait([running])
    found = await leadership.look()
    assert found is not None
    assert (found.holder, master.state.epoch) == ("", 1)
    assert not [thread for thread in threading.enumerate() if thread.name == "lease"]


@pytest.mark.nats
async def test_a_stand_in_says_of_parts_what_the_master_says(nats_server: NatsServer) -> None:
    main = await Connection.open(nats_server.url, "stand-in", create=True)
    other = await Connection.open(nats_server.url, "stand-in")
    try:
        main.leadership.writes_parts = False
        held = await main.leadership.take("a", 2.0, None)
        assert held is not None
        renewed = await other.leadership.stand_in_for(main.leadership).renew(held)
        assert renewed is not None
        assert (renewed.holder, renewed.parts) == ("a", False)
        assert await main.leadership.look() == renewed
    finally:
        await other.close()
        await main.close()
