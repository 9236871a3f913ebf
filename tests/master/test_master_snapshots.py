"""A master starts from the newest valid snapshot, folds the rest, and takes further ones as the log grows."""
# ruff: noqa: ASYNC110 - a store tells nobody what it has

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

import dorm.master.master
import dorm.snapshots
import events.log.stores
from dorm.client.client import Client
from dorm.core.evolve import evolve
from dorm.core.snapshot import FOLDED_BY, dump
from dorm.core.state import State, digest
from dorm.master.master import Master
from dorm.snapshots import SnapshotTaker
from events.chain import Chain
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import LogUnavailable
from events.log.stores import MemorySnapshots, content_of, identity
from events.nats.connection import Connection
from events.sources import fingerprint
from tests.core.golden_log import recorded
from tests.core.records import CLUSTER
from tests.master.leading import running

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager

    from events.log.interface import Bus, EventLog, ReadableLog
    from events.log.records import Record
    from events.log.stores import SnapshotInfo
    from tests.lab.machines.nats_server import NatsServer

EVERY = 30
RECORDS, _ = recorded()
BUILD = fingerprint(*FOLDED_BY)


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (dorm.snapshots, events.log.stores):
        monkeypatch.setattr(module, "SNAPSHOT_EVERY", EVERY)


class WatchedLog(MemoryLog):
    """Knows what was read of it: from where, and whether on and on."""

    def __init__(self, records: Sequence[Record]) -> None:
        super().__init__(time.time_ns, records)
        self.followed_from: list[int] = []

    def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        if follow:
            self.followed_from.append(after)
        return super().read(after=after, subjects=subjects, follow=follow)


def leading(
    log: EventLog, name: str, bus: Bus | None = None, *, accept_log: bool = False
) -> AbstractAsyncContextManager[Master]:
    return running(
        Master(log, bus or MemoryBus(time.time_ns), CLUSTER, name=name, clock=time.time_ns, accept_log=accept_log)
    )


async def folded(log: ReadableLog, seq: int) -> State:
    """From the start."""
    state = State()
    async for batch in log.read():
        for record in batch[: seq - state.seq]:
            evolve(state, record)
    return state


async def infos_until(log: ReadableLog, count: int) -> Sequence[SnapshotInfo]:
    """As soon as there are this many."""
    async with asyncio.timeout(30.0):
        while len(infos := await log.snapshots.infos()) < count:
            await asyncio.sleep(0.01)
    return infos


async def snapshot(log: MemoryLog, at: int, **claims: object) -> SnapshotInfo:
    """A good one, but for what is claimed of it."""
    chain = Chain()
    for record in log.records[:at]:
        chain.follow(record)
    info, body = dump(await folded(log, at), build=BUILD, chain=chain.value.hex())
    info = msgspec.structs.replace(info, **{"record": identity(log.records[at - 1]), **claims})
    await log.snapshots.put(info, body)
    return info


async def test_a_master_takes_snapshots_while_it_folds_and_the_next_one_starts_from_the_last() -> None:
    log = WatchedLog(RECORDS)
    async with leading(log, "first") as first:
        infos = await infos_until(log, 1)
        assert digest(await folded(log, first.state.seq)) == digest(first.state)
    async with leading(log, "second") as second:
        assert log.followed_from == [0, infos[-1].seq]
        assert EVERY <= infos[-1].seq <= len(RECORDS)
        assert second.state.epoch == first.state.epoch + 1
        assert digest(await folded(log, second.state.seq)) == digest(second.state)
        chain = Chain()
        for record in log.records[: second.state.seq]:
            chain.follow(record)
        assert second._sealer.chain == chain.value.hex()


async def test_an_idle_master_takes_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dorm.master.master, "_QUIET_S", 0.0)
    monkeypatch.setattr(dorm.snapshots, "QUIET_EVERY", 10)
    monkeypatch.setattr(dorm.snapshots, "SNAPSHOT_EVERY", 10**6)
    log = WatchedLog(RECORDS)
    async with leading(log, "first"):
        (info,) = await infos_until(log, 1)
    assert info.seq > len(RECORDS)


@pytest.mark.parametrize(
    "claims",
    [
        {"record": "0" * 32},
        {"content": content_of(b"something else")},
        {"digest": "0" * 32},
        {"core": 10**6},
        {"build": "another one"},
    ],
    ids=lambda claims: str(*claims),
)
async def test_an_unusable_snapshot_is_skipped(claims: dict[str, object]) -> None:
    log = WatchedLog(RECORDS)
    good = await snapshot(log, 50)
    await snapshot(log, 100, **claims)
    async with leading(log, "first") as master:
        assert log.followed_from == [good.seq]
        assert digest(await folded(log, master.state.seq)) == digest(master.state)


async def test_snapshots_of_another_log_are_removed() -> None:
    log = WatchedLog(RECORDS)
    for seq, claims in ((40, {"record": "0" * 32}), (60, {"record": "1" * 32}), (80, {"seq": 10**6})):
        await snapshot(log, seq, **claims)
    async with leading(log, "first", accept_log=True):
        assert log.followed_from == [0]
        infos = await infos_until(log, 1)
        assert all(info.record == identity(log.records[info.seq - 1]) for info in infos)


async def test_a_client_starts_from_a_snapshot_too() -> None:
    """And only once, no matter who asks first."""
    log = WatchedLog(RECORDS)
    await snapshot(log, 100)
    log.records = [msgspec.structs.replace(record, body=b"") if record.seq < 100 else record for record in RECORDS]
    client = Client(log, MemoryBus(time.time_ns), CLUSTER)
    one, other = await asyncio.gather(client.state(), client.state())
    assert one is other
    assert digest(one) == digest(await folded(MemoryLog(time.time_ns, RECORDS), len(RECORDS)))
    await snapshot(log, 105)
    assert await client.state() is one
    async for state, _ in client.watch():
        assert state is one
        break


class FailingSnapshots(MemorySnapshots):
    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        raise LogUnavailable("the store is away")

    async def infos(self) -> Sequence[SnapshotInfo]:
        raise LogUnavailable("the store is away")


async def test_a_failing_snapshot_store_does_not_stop_the_master() -> None:
    log = WatchedLog(RECORDS)
    log._snapshots = FailingSnapshots()
    async with leading(log, "first") as master:
        assert digest(await folded(log, master.state.seq)) == digest(master.state)


async def test_snapshots_are_taken_one_at_a_time() -> None:
    log = WatchedLog(RECORDS)
    taker = SnapshotTaker(log)
    state = State()
    for record in RECORDS:
        evolve(state, record)
        taker.offer(state, record)
    running = asyncio.create_task(taker.run())
    assert [info.seq for info in await infos_until(log, 1)] == [EVERY]
    taker.offer(state, RECORDS[-1])
    assert [info.seq for info in await infos_until(log, 2)] == [EVERY, state.seq]
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.nats
async def test_snapshots_on_a_real_server_outlive_the_master(nats_server: NatsServer) -> None:
    connection = await Connection.open(nats_server.url, CLUSTER, create=True)
    for record in RECORDS:
        await connection.log.append(record.subject, record.body, msg_id=record.msg_id)
    async with leading(connection.log, "first", connection.bus) as first:
        infos = await infos_until(connection.log, 1)
    await connection.close()

    again = await Connection.open(nats_server.url, CLUSTER, create=True)
    assert await again.log.snapshots.infos() == infos
    newest = await SnapshotTaker(again.log).newest()
    assert newest is not None
    assert newest[0] == infos[-1]
    assert digest(newest[1]) == digest(await folded(again.log, infos[-1].seq))
    async with leading(again.log, "second", again.bus) as second:
        assert second.state.epoch == first.state.epoch + 1
        assert digest(await folded(again.log, second.state.seq)) == digest(second.state)
    await again.close()
