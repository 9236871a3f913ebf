"""A submission during an outage is acknowledged or refused, and of one that is refused nothing is ever stored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dorm.cli.apps import _submit
from dorm.cli.errors import Fail
from dorm.client.client import Client
from dorm.client.errors import NoAnswer, Unsettled
from dorm.core.admission import app_id
from events import subjects
from events.codec import decode, encode
from events.kinds import AppAccepted, AppSubmitted, Round
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import Appended, LogFull, LogRefused, LogUnavailable, NotSent
from events.nats.connection import Connection
from events.spec import check_spec
from tests.errors import raises

if TYPE_CHECKING:
    from events.errors import DormError
    from events.log.interface import EventLog
    from tests.lab.machines.nats_server import NatsServer

CLUSTER = "asked"
SPEC = {"name": "hello", "command": ["true"], "demand": {"cpu": 1}}


class FlakyLog(MemoryLog):
    """A log that fails appends on request, before or after it has stored them."""

    def __init__(self, *failures: Exception | None) -> None:
        super().__init__(lambda: 1)
        self.failures = list(failures)
        self.lose_answers = True

    async def append(self, subject: str, body: bytes, **how: Any) -> Appended:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None and not (type(failure) is LogUnavailable and self.lose_answers):
            raise failure
        stored = await super().append(subject, body, **how)
        if failure is not None:
            raise failure
        return stored


async def accept(log: EventLog) -> None:
    """As a master does, with each submission once."""
    answered = set()
    async for batch in log.read(follow=True):
        for record in batch:
            event = decode(record)
            if isinstance(event, AppSubmitted) and event.id not in answered:
                answered.add(event.id)
                fact = AppAccepted(app=app_id("hello", event.id), spec=check_spec(event.spec), submission=event.id)
                said = Round(id=f"r.{event.id}", epoch=1, basis=record.seq, allocated=False, events=[fact])
                await log.append(subjects.rounds(CLUSTER), encode(said), msg_id=said.id)


def submitted(log: MemoryLog) -> list[str]:
    return [event.id for event in map(decode, log.records) if isinstance(event, AppSubmitted)]


def asking(log: EventLog, settle_s: float = 30.0) -> Client:
    return Client(log, MemoryBus(lambda: 1), CLUSTER, user="ann", settle_s=settle_s)


@pytest.mark.parametrize("lose_answers", [True, False])
async def test_a_submission_without_an_answer_is_repeated(lose_answers: bool) -> None:
    log = FlakyLog(LogUnavailable("no answer"), NotSent("down"), LogUnavailable("no answer"))
    log.lose_answers = lose_answers
    async with asyncio.timeout(20):
        with raises(NoAnswer, "master.no_answer"):
            await asking(log).submit(SPEC, answer_timeout=0.01)
    assert len(submitted(log)) == 1


@pytest.mark.parametrize("error", [NotSent("lost"), LogFull("no room"), LogRefused("too large")])
async def test_a_submission_that_is_certainly_not_stored_fails(error: DormError) -> None:
    log = FlakyLog(error)
    with raises(type(error), error.code, str(error)):
        await asking(log).submit(SPEC)
    assert submitted(log) == []


@pytest.mark.parametrize("then", [LogUnavailable("no answer"), NotSent("down"), LogRefused("too large")])
async def test_an_unknown_outcome_is_reported_with_the_id_that_settles_it(then: Exception) -> None:
    log = FlakyLog(LogUnavailable("no answer"), *[then] * 9)
    async with asyncio.timeout(20):
        with raises(Unsettled, "request.unsettled") as error:
            await asking(log, settle_s=0.5).submit(SPEC)
        log.failures = []
        with pytest.raises(NoAnswer):
            await asking(log).submit(SPEC, id=error.value.id, answer_timeout=0.01)
    assert submitted(log) == [error.value.id]
    assert error.value.id in str(error.value)


async def test_the_command_line_names_the_command_that_settles_it() -> None:
    client = asking(FlakyLog(*[LogUnavailable("no answer")] * 9), settle_s=0.1)
    with raises(Fail, "request.unsettled", "`dorm submit 'my app.yaml' --id ann."):
        await _submit(client, check_spec(SPEC), Path("my app.yaml"), None)


async def test_a_late_repeat_finds_its_app() -> None:
    log = MemoryLog(lambda: 1)
    async with asyncio.timeout(20):
        master = asyncio.create_task(accept(log))
        first = await asking(log).submit(SPEC, id="ann.1")
        log._by_id.clear()  # The log remembers ids for a while only.
        again = await asking(log).submit(SPEC, id="ann.1")
        master.cancel()
        await asyncio.wait({master})
    assert again.id == first.id


@pytest.mark.nats
async def test_submissions_through_kills_and_freezes_are_stored_as_acknowledged(server: NatsServer) -> None:
    owner = await Connection.open(server.url, CLUSTER, create=True)
    connections = [await Connection.open(server.url, CLUSTER) for _ in range(3)]
    said: dict[str, str] = {}
    over = asyncio.Event()

    async def submit(client: Client) -> None:
        id = f"{client.user}.{len(said)}"
        said[id] = "unknown"
        try:
            await client.submit(SPEC, id=id, answer_timeout=0.0)
        except NoAnswer:
            said[id] = "stored"
        except NotSent:
            said[id] = "refused"

    async def go_on(client: Client) -> None:
        while not over.is_set():
            await submit(client)
            await asyncio.wait({ending}, timeout=0.05)

    clients = [
        Client(one.log, one.bus, CLUSTER, user=f"u{index}", settle_s=20.0, connection=one)
        for index, one in enumerate(connections)
    ]
    lost = asyncio.Semaphore(0)
    for client in clients:
        client.report_outages(lambda away: lost.release() if away else None)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(over.wait())
        for client in clients:
            tasks.create_task(go_on(client))
        for _ in range(2):
            await asyncio.wait({ending}, timeout=0.3)
            server.pause()
            await asyncio.wait({ending}, timeout=0.1)
            await server.kill()
            for _ in clients:
                await lost.acquire()
            await asyncio.gather(*(submit(client) for client in clients))  # The others are on their way since before.
            await server.start()
        over.set()
    stored = [record.msg_id async for batch in owner.log.read() for record in batch]
    assert sorted(stored) == sorted(id for id, how in said.items() if how == "stored")
    assert set(said.values()) == {"stored", "refused"}, "the kills hit nothing, or left something unknown"
    for connection in (owner, *connections):
        await connection.close()
