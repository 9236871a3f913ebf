"""A bit of a server's block file is flipped while the server is down: no master leads what is left, and it says what to do."""
# ruff: noqa: ASYNC110 - only the servers know what they do, and they have to be asked

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from dorm.master.master import Master
from events import subjects
from events.log.records import LogError
from events.nats.connection import Connection
from events.nats.streams import log_stream
from tests.events.nats.reading import all_records
from tests.lab.chaos.replicas import compare, differences, stored
from tests.lab.machines.nats_server import NatsCluster, NatsServer
from tests.master.leading import folded, refusal, running, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from events.log.records import Record

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(180)]
CLUSTER = "lab"
RECORDS = 40
PLACES = {"first record": 0.001, "early": 0.3, "middle": 0.5, "late": 0.8, "last record": 0.995, "last bytes": 0.9999}
"""By how far into the file the bit is, as a part of it."""


def folder_of(server: NatsServer) -> Path:
    return server.home / "data/jetstream/$G/streams" / log_stream(CLUSTER)


def flip(server: NatsServer, part: float, seed: int, *, block: int = 0) -> None:
    file = sorted((folder_of(server) / "msgs").glob("*.blk"), key=lambda path: int(path.stem))[block]
    content = bytearray(file.read_bytes())
    content[int(part * len(content))] ^= 1 << random.Random(seed).randrange(8)
    file.write_bytes(content)


@contextlib.asynccontextmanager
async def leading(url: str, *, may_end: bool = False) -> AsyncIterator[Master]:
    """A master that knows nothing but the log and the lease.  Raises what ends it before it leads."""
    connection = await Connection.open(url, CLUSTER, create=True, patient=True)
    master = Master(
        connection.log,
        connection.bus,
        CLUSTER,
        name=f"m{time.monotonic_ns()}",
        clock=time.time_ns,
        leadership=connection.leadership,
        lease_s=1.0,
    )
    try:
        async with running(master, may_end=may_end):
            yield master
    finally:
        await connection.close()


async def lived(url: str, body: bytes = b"") -> list[Record]:
    """What a cluster leaves behind whose master was there until a moment ago."""
    async with leading(url) as master:
        log = master._log
        await say(log, CLUSTER, RECORDS, reason="x" * 200, body=body)
        await folded(master, max(RECORDS + 1, await log.end()))
        return await all_records(log)


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("place", PLACES)
async def test_no_master_leads_on_the_log_of_one_remaining_server(server: NatsServer, place: str, how: str) -> None:
    await lived(server.url)
    await (server.stop() if how == "stopped" else server.kill())
    flip(server, PLACES[place], seed=len(place))
    await server.start()
    for _ in range(2):
        assert await refusal(leading(server.url))


@pytest.mark.parametrize("place", ["early", "last record"])
async def test_a_leading_master_stops(server: NatsServer, place: str) -> None:
    """It is there all the time: what it has read is not on the log any more when its server is back."""
    other = await Connection.open(server.url, CLUSTER, create=True)
    subject = subjects.fact(CLUSTER, "AppCancelRequested", "u")
    async with leading(server.url, may_end=True) as master:
        await say(other.log, CLUSTER, RECORDS)
        await folded(master, await other.log.end())
        await server.kill()
        flip(server, PLACES[place], seed=1)
        await server.start()
        for _ in range(RECORDS):  # Others take the places of what is gone.
            with contextlib.suppress(LogError):
                await other.log.append(subject, b"{}")
        async with asyncio.timeout(40.0):
            while master.elected.is_set():
                await asyncio.sleep(0.05)
        left = await other.log.end()
    assert await refusal(leading(server.url))
    written = [record async for batch in other.log.read(subjects=[subjects.rounds(CLUSTER)]) for record in batch]
    assert [record.seq for record in written if record.seq > 1] == [], f"it went on, up to {left}"
    await other.close()


@pytest.mark.soak
async def test_the_damaged_one_of_three_servers_is_named_and_gets_a_new_copy(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path / "nats")
    await cluster.start()
    try:
        records = await lived(cluster.url, os.urandom(600_000))  # More than one block file.
        copies = {server.name: folder_of(server) for server in cluster.servers}
        assert await compare(copies, records) == []
        victim = await cluster.leader(log_stream(CLUSTER))
        await asyncio.gather(*(server.stop() for server in cluster.servers))
        flip(victim, 0.3, seed=1)
        (
            folder_of(victim) / "msgs" / "index.db"
        ).unlink()  # Else the server believes this, and looks only when it is read.
        await asyncio.gather(*(server.start() for server in cluster.servers))
        await cluster.ready()
        assert differences(victim.name, stored(copies[victim.name]), records), "the fault did nothing"
        others = {name: folder for name, folder in copies.items() if name != victim.name}
        assert await compare(others, records) == []
        await lead(cluster, victim)
        words = await refusal(leading(cluster.url))
        assert f"this is the copy of NATS server {victim.name}: stop that server, move its folder" in words
        await victim.stop()
        shutil.move(folder_of(victim), tmp_path / "moved away")
        await victim.start()
        await cluster.ready()
        assert await compare(copies, records) == []
        async with leading(cluster.url):
            pass
    finally:
        await cluster.stop()


async def lead(cluster: NatsCluster, server: NatsServer) -> None:
    """Have this server lead the log's stream."""
    async with asyncio.timeout(40.0):
        while await cluster.leader(log_stream(CLUSTER)) is not server:
            async with cluster.client() as client:
                wanted = json.dumps({"placement": {"preferred": server.name}}).encode()
                with contextlib.suppress(TimeoutError):
                    await client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{log_stream(CLUSTER)}", wanted, timeout=2)
            await asyncio.sleep(0.5)
