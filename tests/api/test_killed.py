"""`dorm serve` is killed under its readers, again and again: they lose nothing and see nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest

from dorm.remote import AsyncClient, wire
from events.positions import logged, parse
from tests.api.served import connected, filled
from tests.api.streams.test_streams import positions
from tests.lab.machines.ports import free_port
from tests.replay.busy import busy_log
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow]
PATIENCE_S = 60.0
READERS = 12
RECORDS = busy_log(400, apps=6, nodes=3)
_SERVE = "from dorm.cli.main import main; main()"


@contextlib.asynccontextmanager
async def serving(url: str, cluster: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SERVE, "serve", "--listen", f"127.0.0.1:{port}", "--url", url, "--cluster", cluster,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_killed_server_loses_and_repeats_nothing(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "PAUSE_S", 0.05)
    kills = tries(1, 6)
    port, random = free_port(), Random(7)
    url, part = f"http://127.0.0.1:{port}", len(RECORDS) // (kills + 2)
    last = str([*logged(RECORDS[-1])][-1].position)
    starts = [str(random.randrange(part)) for _ in range(READERS)]
    seen: list[list[str]] = [[] for _ in starts]

    async def read(number: int) -> None:
        async with contextlib.aclosing(AsyncClient(url).events(after=starts[number])) as events:  # type: ignore[type-var]
            async for event in events:
                seen[number].append(event.position)
                if event.position == last:
                    return

    async def until_one_has(seq: int) -> None:
        while not any(found and parse(found[-1]).seq >= seq for found in seen):  # noqa: ASYNC110 - as they read
            await asyncio.sleep(0.001)

    async with (
        connected(nats_server.url) as connection,
        asyncio.timeout(PATIENCE_S * (kills + 1)),
        asyncio.TaskGroup() as tasks,
    ):
        await filled(connection, RECORDS[:part])
        readers = [tasks.create_task(read(number)) for number in range(READERS)]
        for kill in range(kills):
            async with serving(nats_server.url, connection.cluster, port):
                await until_one_has(part)
                begin = part * (kill + 1)
                writing = tasks.create_task(filled(connection, RECORDS[begin : begin + part]))
                await until_one_has(begin + random.randrange(part))
            await writing  # A part of it while no server was there.
        await filled(connection, RECORDS[part * (kills + 1) :])
        async with serving(nats_server.url, connection.cluster, port):
            await asyncio.gather(*readers)
        expected = await positions(connection.log, connection.cluster)
    for start, found in zip(starts, seen, strict=True):
        assert found == [one for one in expected if parse(one).seq > int(start)]
