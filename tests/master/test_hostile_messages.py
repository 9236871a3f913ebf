"""Large messages, refused ones, and message ids that another publisher used first: the master leads on, and no fact is
lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

import dorm.master.master
from agents.outbox import Outbox
from dorm.client.client import Client
from dorm.client.errors import Refused
from dorm.master.master import Master
from events import subjects
from events.codec import decode, encode
from events.kinds import AppAccepted, AppRejected, AppSubmitted, ContainerExited, MasterElected, Round
from events.limits import LEAST_MAX_PAYLOAD
from events.log.leadership import MemoryLeadership
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import Appended, LogRefused, Record
from events.nats.connection import Connection
from tests.core.records import document
from tests.errors import raises
from tests.lab.machines.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from events.log.interface import EventLog, ReadableLog

CLUSTER = "local"
PATIENCE_S = 60.0
STRANGER = "dorm.local.AppCancelRequested.stranger"
WORDS = b'{"app": "nobody"}'


class HostileLog(MemoryLog):
    """A log that refuses rounds on request, and in which a stranger may use the ids of records first."""

    def __init__(self) -> None:
        super().__init__(time.time_ns)
        self.refuses: Callable[[str, bytes], bool] = lambda subject, body: False
        self.forestalls: Callable[[str], bool] = lambda subject: False
        self.refused = 0
        self.has_refused = asyncio.Event()

    async def append(self, subject: str, body: bytes, *, msg_id: str = "", **how: Any) -> Appended:
        if self.refuses(subject, body):
            self.refused += 1
            self.has_refused.set()
            raise LogRefused(f"the message has {len(body):,} bytes")
        if msg_id and "~" not in msg_id and self.forestalls(subject):
            await super().append(STRANGER, WORDS, msg_id=msg_id)
        return await super().append(subject, body, msg_id=msg_id, **how)


@contextlib.asynccontextmanager
async def master(log: EventLog, name: str = "m", **more: Any) -> AsyncIterator[asyncio.Task[None]]:
    bus = more.pop("bus", None) or MemoryBus(time.time_ns)
    task = asyncio.create_task(Master(log, bus, CLUSTER, name=name, clock=time.time_ns, **more).run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def submit(log: EventLog, name: str, **fields: Any) -> None:
    event = AppSubmitted(id=f"ann.{name}", by="ann", spec=document(name, **fields))
    await log.append(subjects.fact(CLUSTER, "AppSubmitted", "ann"), encode(event))


async def answered(log: ReadableLog, count: int) -> list[AppAccepted | AppRejected]:
    """The first answers."""
    found: list[AppAccepted | AppRejected] = []
    async with asyncio.timeout(PATIENCE_S):
        async for batch in log.read(follow=True):
            for event in map(decode, batch):
                facts = event.events if isinstance(event, Round) else []
                found += [fact for fact in facts if isinstance(fact, AppAccepted | AppRejected)]
            if len(found) >= count:
                return found
    raise AssertionError("a follower does not end")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dorm.master.master, "_PAUSE_S", 0.02)
    monkeypatch.setattr(dorm.master.master, "LONGEST_PAUSE_S", 0.5)


async def test_forty_large_submissions_on_a_server_with_its_default_settings(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, max_payload=LEAST_MAX_PAYLOAD)
    await server.start()
    try:
        connection = await Connection.open(server.url, CLUSTER, create=True)
        for number in range(40):
            await submit(connection.log, f"app-{number}", env={"A": "x" * 120_000, "B": "x" * 120_000})
        async with master(connection.log, bus=connection.bus, leadership=connection.leadership) as task:
            found = await answered(connection.log, 40)
            assert not task.done()
        assert sorted(fact.submission for fact in found) == sorted(f"ann.app-{number}" for number in range(40))
        assert all(isinstance(fact, AppAccepted) for fact in found)
        await connection.close()
    finally:
        await server.stop()


async def test_no_master_leads_if_its_rounds_may_not_fit(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, max_payload=LEAST_MAX_PAYLOAD // 2)
    await server.start()
    try:
        connection = await Connection.open(server.url, CLUSTER, create=True)
        async with master(connection.log, bus=connection.bus, leadership=connection.leadership) as task:
            with pytest.raises(LogRefused, match=r"at most 524,288 bytes.* set max_payload to 1MB or more"):
                await asyncio.wait_for(task, PATIENCE_S)
        assert await connection.log.end() == 0
        await connection.close()
    finally:
        await server.stop()


async def test_a_refused_round_ends_no_master() -> None:
    log = HostileLog()
    log.refuses = lambda subject, body: subjects.kind_of(subject) == "Round" and log.refused < 12
    async with master(log) as task:
        await submit(log, "app")
        assert len(await answered(log, 1)) == 1
        assert not task.done()
    assert log.refused == 12


async def test_a_master_that_cannot_publish_lets_another_try() -> None:
    """Two masters on one log; the first one's server refuses what it says."""
    log, leadership, bus = HostileLog(), MemoryLeadership(), MemoryBus(time.time_ns)
    log.refuses = lambda subject, body: subjects.kind_of(subject) == "Round" and decode_by(body) == "first"
    await submit(log, "app")
    async with master(log, "first", leadership=leadership, lease_s=0.4, bus=bus) as first:
        await asyncio.wait_for(log.has_refused.wait(), PATIENCE_S)
        async with master(log, "second", leadership=leadership, lease_s=0.4, bus=bus) as second:
            assert len(await answered(log, 1)) == 1
            assert not first.done()
            assert not second.done()


def decode_by(body: bytes) -> str:
    return decode(Record(0, 0, subjects.rounds(CLUSTER), body)).by


async def test_rounds_are_stored_even_if_their_ids_were_taken() -> None:
    log = HostileLog()
    log.forestalls = lambda subject: subjects.kind_of(subject) == "Round"
    await submit(log, "app")
    async with master(log) as task:
        await answered(log, 1)
        assert not task.done()
    rounds = [decode(record) for record in log.records if subjects.kind_of(record.subject) == "Round"]
    assert isinstance(rounds[0], Round)
    assert isinstance(rounds[0].events[0], MasterElected)
    assert len([record for record in log.records if record.subject == STRANGER]) >= len(rounds)


async def test_the_ids_of_rounds_can_not_be_guessed_from_the_log() -> None:
    log = HostileLog()
    async with master(log):
        for seq in range(100):
            await log.append(STRANGER, WORDS, msg_id=f"m.1.{seq}")
        for number in range(3):
            await submit(log, f"app-{number}")
            await answered(log, number + 1)
    ids = [record.msg_id for record in log.records if subjects.kind_of(record.subject) == "Round"]
    assert len({id.rpartition(".")[2] for id in ids}) == len(ids) >= 4


async def test_an_exit_is_stored_even_if_its_id_was_taken() -> None:
    log = HostileLog()
    log.forestalls = lambda subject: True
    outbox = Outbox(log, CLUSTER, "n1")
    exited = ContainerExited(
        id="n1.app-1-0.exited", at=1, by="n1", app="app", generation=1, slot=0, node="n1", exit_code=3
    )
    running = asyncio.create_task(outbox.run())
    await outbox.put(exited)
    await asyncio.wait_for(outbox.flush(), PATIENCE_S)
    running.cancel()
    assert [decode(record) for record in log.records if subjects.kind_of(record.subject) == "ContainerExited"] == [
        exited
    ]


async def test_a_submission_is_stored_even_if_its_message_id_was_taken() -> None:
    log = HostileLog()
    log.forestalls = lambda subject: subjects.kind_of(subject) == "AppSubmitted"
    async with master(log):
        client = Client(log, MemoryBus(time.time_ns), CLUSTER, user="ann")
        app = await client.submit(document("app"), id="ann.app")
        again = await client.submit(document("app"), id="ann.app")
    assert app.id == again.id
    assert len([record for record in log.records if subjects.kind_of(record.subject) == "AppSubmitted"]) == 1


@pytest.mark.parametrize("name", ["app", "other"])
async def test_another_users_app_is_not_mistaken_for_ones_own(name: str) -> None:
    """A stranger has guessed the id of a submission, with the name that it will have or with another one."""
    log = HostileLog()
    stolen = AppSubmitted(id="ann.app", by="eve", spec=document(name, env={"BAD": "yes"}))
    await log.append(subjects.fact(CLUSTER, "AppSubmitted", "eve"), encode(stolen), msg_id="ann.app")
    async with master(log):
        await answered(log, 1)
        client = Client(log, MemoryBus(time.time_ns), CLUSTER, user="ann")
        if name == "app":
            with raises(Refused, "submission.id_taken", "ann.app"):
                await client.submit(document("app"), id="ann.app")
        else:
            app = await client.submit(document("app"), id="ann.app")
            assert "BAD" not in app.spec.env


async def test_a_later_repeat_of_a_submission_is_still_ones_own() -> None:
    """Beyond the log's duplicate window it is stored a second time, and answered once."""
    log = HostileLog()
    async with master(log):
        client = Client(log, MemoryBus(time.time_ns), CLUSTER, user="ann")
        app = await client.submit(document("app"), id="ann.app")
        log._by_id.clear()
        assert (await client.submit(document("app"), id="ann.app")).id == app.id
