"""The log on three NATS servers, some of which are killed or frozen."""
# ruff: noqa: ASYNC110 - only the servers know what they do, and they have to be asked

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from events.log.records import LogDamaged, LogRefused, LogUnavailable
from events.nats.connection import Connection
from events.nats.reader import read_directly
from events.nats.settings import leads
from events.nats.streams import log_stream, stream_configs
from tests.errors import raises
from tests.events.nats.reading import all_records
from tests.lab.machines.nats_server import NatsCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.log.interface import EventLog, ReadableLog
    from events.log.records import Record

pytestmark = [pytest.mark.nats, pytest.mark.timeout(90)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsCluster]:
    """Three running servers for all tests here, each of which leaves them as they were."""
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"))
    await cluster.start()
    yield cluster
    await cluster.stop()


async def replicas(cluster: NatsCluster, name: str) -> set[int | None]:
    """How many servers hold the cluster's streams."""
    async with cluster.owner() as jetstream:
        return {(await jetstream.stream_info(str(one.name))).config.num_replicas for one in stream_configs(name)}


@pytest.mark.asyncio(loop_scope="module")
async def test_new_streams_get_three_replicas_and_existing_ones_only_on_request(cluster: NatsCluster) -> None:
    await (await Connection.open(cluster.url, "three", create=True)).close()
    assert await replicas(cluster, "three") == {3}
    await (await Connection.open(cluster.url, "one", create=True, replicas=1)).close()
    await (await Connection.open(cluster.url, "one", create=True)).close()
    assert await replicas(cluster, "one") == {1}
    connection = await Connection.open(cluster.url, "one", create=True, replicas=3)
    assert await replicas(cluster, "one") == {3}
    assert (await connection.log.append("dorm.one.A.x", b"")).seq == 1
    await connection.close()
    await (await Connection.open(cluster.url, "one", create=True, replicas=1)).close()
    assert await replicas(cluster, "one") == {3}, "it was lowered"
    with raises(LogRefused, "log.replicas.too_few_servers", "5"):
        await Connection.open(cluster.url, "one", create=True, replicas=5)


@pytest.mark.asyncio(loop_scope="module")
async def test_records_are_read_from_any_server_without_a_consumer(cluster: NatsCluster) -> None:
    connection = await Connection.open(cluster.url, "direct", create=True)
    for number in range(7):
        await connection.log.append("dorm.direct.A.x", b"%d" % number, msg_id=f"id-{number}")
    stream, link = log_stream("direct"), connection._link
    wanted = [record async for batch in connection.log.read() for record in batch]
    found: list[Record] = []
    async with asyncio.timeout(20):
        while len(found) < 7:  # The answering server may be a moment behind.
            found = await read_directly(link, stream, 0)
    assert found == wanted
    assert await read_directly(link, stream, 4) == wanted[4:]
    assert await read_directly(link, stream, 7) == []
    assert await read_directly(link, "nothing", 0) == []
    await connection.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_log_that_seems_shorter_than_what_was_read_is_asked_again(
    cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server that was cut off says for a while when it is back."""
    connection = await Connection.open(cluster.url, "shorter", create=True)
    log = connection.log
    await log.append("dorm.shorter.A.x", b"1")
    async with asyncio.timeout(40), aclosing(log.read(after=2, follow=True)) as batches:
        following = asyncio.ensure_future(anext(batches))
        bounded = asyncio.create_task(read_after(log, 2))
        done, _ = await asyncio.wait({following, bounded}, timeout=1.0)
        assert not done
        for body in (b"2", b"3"):
            await log.append("dorm.shorter.A.x", body)
        assert [record.body for record in await following] == [b"3"]
        assert [record.body for record in await bounded] in (
            [],
            [b"3"],
        )  # Up to what was the end when it was asked again.
        monkeypatch.setattr("events.nats.log._STALE_S", 0.5)
        with raises(LogDamaged, "log.truncated", "3", "7"):
            await read_after(log, 7)
    async with asyncio.timeout(40), aclosing(log.read(after=7, follow=True)) as batches:
        with raises(LogDamaged, "log.truncated", "3", "7"):
            await anext(batches)
    await connection.close()


async def read_after(log: ReadableLog, after: int) -> list[Record]:
    return [record async for batch in log.read(after=after) for record in batch]


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_leader_that_hears_no_majority_is_not_believed(cluster: NatsCluster) -> None:
    connection = await Connection.open(cluster.url, "alone", create=True)
    leader = await cluster.leader(log_stream("alone"))
    others = [server for server in cluster.servers if server is not leader]
    direct = await Connection.open(leader.url, "alone")
    assert await direct.log.end() == 0
    for server in others:
        server.pause()
    async with asyncio.timeout(40):
        while await believed(direct.log):
            await asyncio.sleep(0.1)
        for server in others:
            server.resume()
        while not await believed(direct.log):
            await asyncio.sleep(0.1)
    await direct.close()
    await connection.close()


async def believed(log: ReadableLog) -> bool:
    try:
        return await log.end() == 0
    except LogUnavailable:
        return False


def test_leading_follows_from_answers() -> None:
    def said(*active: int, offline: bool = False, replicas: int = 3) -> dict[str, object]:
        peers = [{"active": one, "offline": offline} for one in active]
        return {"config": {"num_replicas": replicas}, "cluster": {"replicas": peers}}

    assert leads({"config": {"num_replicas": 1}})
    assert leads(said(0, 9_000_000_000))
    assert not leads(said(9_000_000_000, 9_000_000_000))
    assert not leads(said(0, 0, offline=True))
    assert not leads(said(0, replicas=5))


class Traffic:
    """Writers and followers of one log, through whatever is done to its servers."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        self.refused = 0
        self.behind: list[tuple[int, int]] = []
        self.over = asyncio.Event()
        self.grown = asyncio.Event()

    async def write(self, log: EventLog, name: str) -> None:
        number = 0
        while not self.over.is_set():
            msg_id = f"{name}-{number}"
            try:
                appended = await log.append("dorm.traffic.A.x", msg_id.encode(), msg_id=msg_id, timeout=1.0)
            except LogUnavailable:
                self.refused += 1
                await asyncio.wait({self.ending}, timeout=0.05)
                continue
            self.acknowledged[msg_id] = appended.seq
            self.grown.set()
            number += 1
            await asyncio.wait({self.ending}, timeout=0.01)

    async def follow(self, log: ReadableLog, last: asyncio.Future[int], *subjects: str) -> list[Record]:
        seen: list[Record] = []
        async with aclosing(log.read(follow=True, subjects=subjects)) as batches:
            async for batch in batches:
                seen += batch
                if last.done() and seen[-1].seq >= last.result():
                    break
        return seen

    async def look(self, log: ReadableLog) -> None:
        """The reported end is never before an acknowledged record, regardless of who leads."""
        while not self.over.is_set():
            known = max(self.acknowledged.values(), default=0)
            try:
                end = await log.end()
            except LogUnavailable:
                end = known
            if end < known:
                self.behind.append((end, known))
            await asyncio.wait({self.ending}, timeout=0.02)

    async def more(self) -> None:
        """Returns when something that was sent from now on is acknowledged."""
        for _ in range(4):
            self.grown.clear()
            await self.grown.wait()

    async def none(self, s: float) -> None:
        """How long nothing may be acknowledged; what was just on its way may."""
        await asyncio.wait({self.ending}, timeout=0.5)
        before = len(self.acknowledged)
        await asyncio.wait({self.ending}, timeout=s)
        assert len(self.acknowledged) == before

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        self.ending = tasks.create_task(self.over.wait())


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.asyncio(loop_scope="module")
async def test_whatever_happens_to_its_servers_a_log_loses_nothing_and_stores_nothing_twice(
    cluster: NatsCluster,
) -> None:
    connections = [await Connection.open(cluster.url, "traffic", create=True) for _ in range(5)]
    logs = [connection.log for connection in connections]
    traffic, stream = Traffic(), log_stream("traffic")
    last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(180), asyncio.TaskGroup() as tasks:
        traffic.begin(tasks)
        followers = [
            tasks.create_task(traffic.follow(logs[0], last)),
            tasks.create_task(traffic.follow(logs[1], last, "dorm.traffic.A.*")),
        ]
        tasks.create_task(traffic.look(logs[2]))
        writers = [tasks.create_task(traffic.write(log, f"w{index}")) for index, log in enumerate(logs[2:])]
        await traffic.more()
        leader = await cluster.leader(stream)
        await leader.kill()
        await traffic.more()
        await leader.start()
        leader = await cluster.leader(stream)
        leader.pause()
        await traffic.more()
        leader.resume()
        await cluster.ready()
        gone = [server for server in cluster.servers if server is not leader]
        for server in gone:
            await server.kill()
        await traffic.none(1.5)
        for server in gone:
            await server.start()
        await traffic.more()
        traffic.over.set()
        for writer in writers:
            await writer
        last.set_result((await logs[0].append("dorm.traffic.A.x", b"last", msg_id="last")).seq)
    records = await all_records(logs[0])
    assert {record.msg_id: record.seq for record in records[:-1]}.items() >= traffic.acknowledged.items()
    assert len({record.msg_id for record in records}) == len(records), "something is stored twice"
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert [follower.result() for follower in followers] == [records, records]
    assert traffic.behind == []
    assert traffic.refused > 0, "the faults hit nothing"
    for connection in connections:
        await connection.close()
    await cluster.ready()
