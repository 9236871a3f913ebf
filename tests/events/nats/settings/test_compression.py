"""Streams that an earlier release made compressed: a master changes them, and warns while their copies are in danger."""
# ruff: noqa: ASYNC110 - only the servers know what they do, and they have to be asked

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from nats.js.api import StoreCompression

from events.log.records import LogUnavailable
from events.nats.connection import Connection
from events.nats.settings import _not_restarted, _without_compression, compressed_by
from events.nats.streams import log_stream, report_stream, stream_configs
from tests.e2e.commands import done, running, until_printed
from tests.events.nats.reading import all_records
from tests.lab.chaos.replicas import compare
from tests.lab.machines.nats_server import NatsCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    cluster = NatsCluster(tmp_path / "nats")
    await cluster.start()
    yield cluster
    await cluster.stop()


async def as_made_before(cluster: NatsCluster, name: str, replicas: int = 3) -> None:
    """The streams of release 0.5.0."""
    async with cluster.owner() as jetstream:
        for config in stream_configs(name):
            if config.name in (log_stream(name), report_stream(name)):
                config.compression = StoreCompression.S2
            if replicas > 1:
                config.persist_mode = None
            await jetstream.add_stream(config, num_replicas=replicas)


async def compression(cluster: NatsCluster, name: str) -> set[object]:
    async with cluster.owner() as jetstream:
        found = [(await jetstream.stream_info(str(config.name))).config for config in stream_configs(name)]
    return {config.compression for config in found}


async def restart(cluster: NatsCluster, server: NatsServer, name: str) -> None:
    """As an operator does: the next one only when this one has caught up with every stream."""
    await server.stop()
    await server.start()
    async with asyncio.timeout(60):
        for config in stream_configs(name):
            while not await caught_up(cluster, str(config.name)):
                await asyncio.sleep(0.2)


async def caught_up(cluster: NatsCluster, stream: str) -> bool:
    await cluster.leader(stream)
    async with cluster.owner() as jetstream:
        info = await jetstream.stream_info(stream)
    peers = info.cluster.replicas if info.cluster is not None else None
    return bool(peers and all(peer.current and not peer.offline for peer in peers))


async def test_new_streams_are_not_compressed(cluster: NatsCluster) -> None:
    connection = await Connection.open(cluster.url, "new", create=True)
    assert await compression(cluster, "new") <= {None, StoreCompression.NONE}
    assert await connection.endangered() == ""
    await connection.close()


@pytest.mark.soak
async def test_a_master_changes_a_compressed_log_and_reports_it_until_all_servers_have_restarted(
    cluster: NatsCluster, tmp_path: Path
) -> None:
    await as_made_before(cluster, "old")
    options = ["--url", cluster.url, "--cluster", "old"]
    connection = await Connection.open(cluster.url, "old", create=True)
    assert "DORM-old and DORM_reports-old: compressed" in await connection.endangered()
    assert "warning: DORM-old and" in await done(tmp_path / "home", "masters", *options)
    log = tmp_path / "log"
    async with running(tmp_path / "home", log, "master", *options, "--key", str(tmp_path / "m.nk")) as process:
        said = await until_printed(log, '"leading"', process)
    assert "the log's copies are in danger" in said
    assert await compression(cluster, "old") <= {None, StoreCompression.NONE}
    left = [server.name for server in cluster.servers]
    for server in cluster.servers:
        assert f"NATS servers {', '.join(left)} still compress" in await connection.endangered()
        await restart(cluster, server, "old")
        left.remove(server.name)
    async with asyncio.timeout(20):
        while await connection.endangered():
            await asyncio.sleep(0.2)
    await connection.uncompress()
    async with cluster.owner() as jetstream:
        metadata = (await jetstream.stream_info(log_stream("old"))).config.metadata or {}
    assert "dorm_compressed_by" not in metadata, "what is over is not forgotten"
    await connection.close()


async def test_one_copy_that_becomes_three_is_not_compressed_and_its_server_is_reported(cluster: NatsCluster) -> None:
    await as_made_before(cluster, "one", replicas=1)
    connection = await Connection.open(cluster.url, "one", create=True)
    assert await connection.endangered() == "", "one copy is not made worse by it"
    await connection.close()
    holder = (await cluster.leader(log_stream("one"))).name
    connection = await Connection.open(cluster.url, "one", create=True, replicas=3)
    assert await compression(cluster, "one") <= {None, StoreCompression.NONE}
    assert f"NATS servers {holder} still compress" in await connection.endangered()
    await connection.close()


@pytest.mark.soak
async def test_two_of_three_servers_that_are_killed_at_once_lose_nothing(cluster: NatsCluster, tmp_path: Path) -> None:
    """Of a stream that was compressed and then changed, once its servers were restarted in turn.  While it is compressed, this
    destroys the copies in the first or second try."""
    await as_made_before(cluster, "killed")
    connection = await Connection.open(cluster.url, "killed", create=True)
    await connection.uncompress()
    for server in cluster.servers:
        await restart(cluster, server, "killed")
    acknowledged: dict[str, int] = {}
    over = asyncio.Event()

    async def write(name: str) -> None:
        number = 0
        while not over.is_set():
            msg_id, body = f"{name}-{number}", os.urandom(40).hex().encode() * random.randint(1, 12)
            try:
                stored = await connection.log.append("dorm.killed.A.x", body, msg_id=msg_id, timeout=2.0)
            except LogUnavailable:
                await asyncio.sleep(0.05)
                continue
            acknowledged[msg_id], number = stored.seq, number + 1

    draws = random.Random(1)
    async with asyncio.TaskGroup() as tasks:
        for number in range(8):
            tasks.create_task(write(f"w{number}"))
        for victims in (draws.sample(cluster.servers, 2), draws.sample(cluster.servers, 2), cluster.servers):
            await asyncio.sleep(2.0)  # So that there is something on its way.
            await asyncio.gather(*(server.kill() for server in victims))
            await asyncio.gather(*(server.start() for server in victims))
            async with asyncio.timeout(60):
                before = len(acknowledged)
                while len(acknowledged) < before + 50:
                    await asyncio.sleep(0.1)
        over.set()
    records = await all_records(connection.log)
    assert {record.msg_id: record.seq for record in records}.items() >= acknowledged.items()
    folders = {
        server.name: server.home / "data/jetstream/$G/streams" / log_stream("killed") for server in cluster.servers
    }
    wrong = await compare(folders, records)
    ends = asyncio.get_running_loop().time() + 30.0
    while wrong and asyncio.get_running_loop().time() < ends:  # A follower may still be catching up.
        await asyncio.sleep(0.5)
        wrong = await compare(folders, records)
    assert wrong == []
    await connection.close()


def test_notes_of_a_stream_survive_a_round_trip() -> None:
    changed = _without_compression({"name": "s", "metadata": {"a": "b"}}, {"s0": "NA", "s=1": "?", "s2": "NC"})
    noted = compressed_by(changed["metadata"])
    assert (changed["compression"], changed["metadata"]["a"]) == ("none", "b")
    assert noted == {"s0": "NA", "s=1": "?", "s2": "NC"}
    assert _not_restarted(noted, {"s0": "NA", "s=1": "NX", "s2": "NZ"}) == {"s0", "s=1"}
    assert _not_restarted(noted, {"s0": "NB"}) == {"s=1", "s2"}
    assert compressed_by(None) == {}
