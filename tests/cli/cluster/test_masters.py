"""`dorm masters`: the lease says who leads, the log since when; and the messages of commands that wait for a master."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from dorm.cli.wait import NOBODY
from dorm.client.client import Client
from dorm.master.master import Master
from events import subjects
from events.codec import encode
from events.nats.connection import Connection
from tests.core.records import document, joined
from tests.e2e.commands import done, dorm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow]
LEASE_S = 1.0


class Lab:
    def __init__(self, home: Path, url: str, connection: Connection) -> None:
        self.home, self.connection = home, connection
        self._common = ["--url", url, "--cluster", connection.cluster]

    async def dorm(self, *arguments: str) -> str:
        return await done(self.home, *arguments, *self._common)

    async def fails(self, *arguments: str) -> list[str]:
        """What it complained about."""
        code, out, err = await dorm(self.home, *arguments, *self._common)
        assert (code, out) == (1, "")
        return err.splitlines()

    async def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.dorm("masters", "-o", "json"))
        return found

    @contextlib.asynccontextmanager
    async def master(self, name: str) -> AsyncIterator[None]:
        """It leads until the end of the block."""
        log, bus, leadership = self.connection.log, self.connection.bus, self.connection.leadership
        options: dict[str, Any] = {"clock": time.time_ns, "leadership": leadership, "lease_s": LEASE_S}
        master = Master(log, bus, self.connection.cluster, name=name, **options)
        leading = asyncio.create_task(master.run())
        try:
            async with asyncio.timeout(20.0):
                await master.elected.wait()
            yield
        finally:
            leading.cancel()
            await asyncio.wait([leading])

    @contextlib.asynccontextmanager
    async def lease_of(self, holder: str) -> AsyncIterator[None]:
        """A holder renews the lease, and publishes nothing on the log."""
        leadership = self.connection.leadership
        held = await leadership.take(holder, LEASE_S, await leadership.look())

        async def renew() -> None:
            while True:
                assert held is not None
                assert await leadership.renew(held)
                await asyncio.sleep(LEASE_S / 4)

        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])


@pytest_asyncio.fixture
async def lab(tmp_path: Path, nats_server: NatsServer) -> AsyncIterator[Lab]:
    connection = await Connection.open(nats_server.url, f"masters-{tmp_path.name[-30:]}", create=True)
    yield Lab(tmp_path / "home", nats_server.url, connection)
    await connection.close()


async def test_only_the_holder_of_the_lease_leads(lab: Lab) -> None:
    never = await lab.shown()
    assert (never["leader"], never["condition"], never["last"]) == ("", "unknown", "")
    async with lab.master("m1"):
        leads = await lab.shown()
        assert (leads["leader"], leads["condition"], leads["last"]) == ("m1", "leading", "m1")
        assert leads["epoch"] >= 1
        assert leads["led_until"] == 0
    gone = await lab.shown()
    assert (gone["leader"], gone["condition"], gone["last"]) == ("", "gone", "m1")
    assert leads["elected_at"] < gone["led_until"] < time.time_ns() + 10**10
    assert "no master leads (gone): m1 led until 20" in await lab.dorm("masters")
    async with lab.lease_of("m2"):
        taking = await lab.shown()
        assert (taking["leader"], taking["condition"], taking["last"]) == ("m2", "taking over", "m1")
        assert "m1 was elected last" in await lab.dorm("masters")
    silent = await lab.shown()
    assert (silent["leader"], silent["condition"], silent["last"]) == ("", "silent", "m1")


async def test_waiting_apps_show_that_scheduling_is_paused(lab: Lab) -> None:
    log, name = lab.connection.log, lab.connection.cluster
    client = Client(log, lab.connection.bus, name, user="ann")
    await log.append(subjects.fact(name, "NodeJoined", "n1"), encode(joined("n1")))
    async with lab.master("m1"), asyncio.timeout(20.0):
        app = (await client.submit(document("stays"))).id
        async for state, _ in client.watch():
            if any(generation.released for generation in state.apps[app].generations.values()):
                break
    lines = await lab.fails("drain", "n1", "--wait", "--timeout", "6")
    assert lines[0] == NOBODY
    assert lines[1].startswith(f"error: n1 is not empty after 6 s, and stays drained: {NOBODY}; stays: 4 containers, ")
