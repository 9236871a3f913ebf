"""Masters that seal: now and then, when asked, at their end, one after another, and killed between."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from dorm.client.client import Client
from dorm.client.errors import NoAnswer
from dorm.master.master import Master
from dorm.master.sealing import LONGEST_NS, MOST_RECORDS
from events import subjects
from events.chain import SealKey, new_seed
from events.codec import decode, encode
from events.kinds import AppCancelRequested, LogSealed, MasterElected, Round, SealRequested
from events.log.memory import MemoryBus, MemoryLog
from events.log.stores import MemorySnapshots
from replay.audit.audit import verify
from replay.audit.seal_checks import verify_seals
from tests.errors import raises
from tests.master.leading import running
from tests.replay.made_log import all_facts
from tests.replay.recorded import play

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from events.log.records import Record
    from events.log.stores import SnapshotInfo

CLUSTER = "local"
PATIENCE_S = 30.0


@contextlib.asynccontextmanager
async def leading(log: MemoryLog, name: str, key: SealKey | None, *, kill: bool = False) -> AsyncIterator[Master]:
    """A master until the end of the block; a killed one writes nothing more."""
    master = Master(log, MemoryBus(time.time_ns), CLUSTER, name=name, clock=time.time_ns, key=key)
    async with running(master):
        yield master
        if kill:
            master._log = _Dead(time.time_ns, log.records)


class _Dead(MemoryLog):
    """What a killed master writes to."""


async def say(log: MemoryLog, count: int = 1) -> None:
    for _ in range(count):
        await log.append(subjects.fact(CLUSTER, "AppCancelRequested", "u"), encode(AppCancelRequested(app="none")))


def seals(log: MemoryLog) -> list[LogSealed]:
    return all_facts(log.records, LogSealed)


async def until_seal(log: MemoryLog, upto: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for batch in log.read(follow=True):
            for event in map(decode, batch):
                for fact in event.events if isinstance(event, Round) else ():
                    if isinstance(fact, LogSealed) and fact.upto >= upto:
                        return


async def test_a_master_seals_when_it_stops_and_the_next_one_continues() -> None:
    log, key = MemoryLog(time.time_ns), SealKey(new_seed())
    for name in ("first", "second"):
        async with leading(log, name, key):
            await say(log, 3)
    assert [seal.upto for seal in seals(log)] == [4, 9]
    assert await log.end() == 10
    assert [elected.key for elected in all_facts(log.records, MasterElected)] == [key.public] * 2
    report = await verify(log, keys=[key.public])
    assert report.good
    assert (report.seals.seals, report.seals.sealed_upto, report.seals.unsealed) == (2, 9, 1)
    assert report.not_checked == 0


async def test_a_master_without_a_key_makes_no_seals() -> None:
    log = MemoryLog(time.time_ns)
    async with leading(log, "first", None):
        await say(log, 2 * MOST_RECORDS)
    assert seals(log) == []
    assert (await verify_seals(log)).seals == 0


async def test_many_records_are_sealed_at_once_and_an_idle_log_does_not_grow() -> None:
    log, key = MemoryLog(time.time_ns), SealKey(new_seed())
    async with leading(log, "first", key):
        await say(log, MOST_RECORDS)
        await until_seal(log, MOST_RECORDS)
        end = await log.end()
    assert await log.end() <= end + 2
    async with leading(log, "second", key):
        pass
    assert (await verify_seals(log, keys=[key.public])).good


async def test_few_records_are_sealed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LONGEST_NS == 60_000_000_000
    monkeypatch.setattr("dorm.master.sealing.LONGEST_NS", 50_000_000)
    log, key = MemoryLog(time.time_ns), SealKey(new_seed())
    async with leading(log, "first", key):
        await say(log)
        await until_seal(log, 2)


async def test_a_client_asks_for_a_seal() -> None:
    log, key = MemoryLog(time.time_ns), SealKey(new_seed())
    client = Client(log, MemoryBus(time.time_ns), CLUSTER, user="ann")
    with raises(NoAnswer, "master.no_seal"):
        await client.seal(answer_timeout=0.05)
    async with leading(log, "first", key):
        # What was asked before this master came is answered too.
        await until_seal(log, 1)
        seal = await client.seal(answer_timeout=PATIENCE_S)
        assert seal.key == key.public
        assert isinstance(decode(log.records[seal.upto - 1]), SealRequested)


async def test_masters_with_separate_keys_and_a_killed_one() -> None:
    log = MemoryLog(time.time_ns)
    first, second = SealKey(new_seed()), SealKey(new_seed())
    async with leading(log, "a", first):
        await say(log, 70)
    async with leading(log, "b", second, kill=True):
        await say(log, 70)
    assert len(seals(log)) == 1
    async with leading(log, "c", second):
        await say(log, 1)
    assert [seal.key for seal in seals(log)] == [first.public, second.public]
    assert (await verify_seals(log, keys=[first.public, second.public])).good
    assert not (await verify_seals(log, keys=[second.public])).good
    changed: list[Record] = list(log.records)
    changed[100], changed[101] = changed[101], changed[100]
    changed[100].seq, changed[101].seq = 101, 102
    report = await verify_seals(MemoryLog(time.time_ns, changed))
    assert report.damage is not None
    assert report.damage.first <= 101 <= report.damage.last


class Noticed(MemorySnapshots):
    """Says when there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.there = asyncio.Event()

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        await super().put(info, body)
        self.there.set()


async def test_a_master_that_starts_from_a_snapshot_continues_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dorm.snapshots.SNAPSHOT_EVERY", 50)
    log, key = MemoryLog(time.time_ns), SealKey(new_seed())
    kept = log._snapshots = Noticed()
    async with leading(log, "first", key):
        await say(log, 100)
        async with asyncio.timeout(PATIENCE_S):
            await kept.there.wait()
    infos = await log.snapshots.infos()
    assert all(len(info.chain) == 64 for info in infos)
    async with leading(log, "second", key) as second:
        assert second._sealer._after >= infos[0].seq
        await say(log, 10)
    report = await verify_seals(log, keys=[key.public])
    assert report.good
    assert report.unsealed == 1


async def test_a_cluster_with_seals_is_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seals among decisions change none of them."""
    monkeypatch.setattr("dorm.master.sealing.MOST_RECORDS", 5)
    log, key = MemoryLog(time.time_ns), SealKey(new_seed())
    monkeypatch.setattr("tests.replay.recorded.MASTER_KEY", key)
    await play(log, MemoryBus(time.time_ns), "sealed", tmp_path)
    report = await verify(log, keys=[key.public])
    assert report.good
    assert report.not_checked == 0
    assert report.seals.seals >= 5
    assert report.decisions_checked + report.conclusions_checked + report.seals.seals == report.rounds
    assert report.seals.unsealed <= 5
