"""The tail on a real server: every acknowledged event once and in order, whichever process is killed meanwhile."""
# ruff: noqa: ASYNC110 - only the server knows what it does, and it has to be asked

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import nats
import pytest
import pytest_asyncio

from dorm.client.client import Client
from events import subjects
from events.codec import encode
from events.kinds import AppCompleted, AppSubmitted, NodeRecovered, Round
from events.log.records import LogUnavailable
from events.nats.connection import Connection
from events.positions import logged
from tests.core.records import document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.kinds import Event
    from events.log.interface import EventLog
    from events.positions import Logged, Position
    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]
CLUSTER = "tail"


@pytest_asyncio.fixture
async def log(server: NatsServer) -> AsyncIterator[EventLog]:
    connection = await Connection.open(server.url, CLUSTER, create=True)
    yield connection.log
    await connection.close()


def said_by(user: str, number: int) -> tuple[str, Event]:
    """Submissions, and every third time a round of three facts; with its subject."""
    name = f"{user}.{number}"
    if number % 3 == 2:
        facts: list[Any] = [AppCompleted(app=f"{user}s", generation=number + place) for place in range(2)]
        facts.append(NodeRecovered(node="n1"))
        return subjects.rounds(CLUSTER), Round(id=name, epoch=1, basis=0, allocated=False, events=facts)
    submitted = AppSubmitted(id=name, by=user, spec={**document(f"{user}s"), "user": user})
    return subjects.fact(CLUSTER, "AppSubmitted", user), submitted


async def write(
    log: EventLog, user: str, count: int, acknowledged: dict[str, int], progress: asyncio.Semaphore
) -> None:
    """Each until it is acknowledged."""
    for number in range(count):
        subject, event = said_by(user, number)
        while event.id not in acknowledged:
            try:
                appended = await log.append(subject, encode(event), msg_id=event.id, timeout=0.5)
            except LogUnavailable:
                continue
            acknowledged[event.id] = appended.seq
        progress.release()


async def follow(client: Client, last: asyncio.Future[int], **wanted: Any) -> list[Logged]:
    """All events up to the one that ends the test."""
    found: list[Logged] = []
    async with aclosing(client.events(**wanted)) as events:
        async for one in events:
            found.append(one)
            if last.done() and one.position.seq >= last.result():
                return found
    raise AssertionError("a tail that follows does not end")


async def follow_in_pieces(server: NatsServer, last: asyncio.Future[int]) -> list[Logged]:
    """Like a program that is killed after every few events and resumes from the position that it had noted."""
    found: list[Logged] = []
    after: Position | str = "0"
    while not (last.done() and found and found[-1].position.seq >= last.result()):
        client = await connected(server)
        async with client, aclosing(client.events(after=str(after))) as events:
            async for one in events:
                found.append(one)
                after = one.position
                if len(found) % 7 == 0 or (last.done() and one.position.seq >= last.result()):
                    break
    return found


async def connected(server: NatsServer) -> Client:
    while True:
        try:
            return await Client.open(server.url, CLUSTER)
        except LogUnavailable:
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_every_acknowledged_event_arrives_once_and_in_order_through_server_kills(
    server: NatsServer, log: EventLog
) -> None:
    count, users = 45, ("ann", "bob")
    acknowledged: dict[str, int] = {}
    progress = asyncio.Semaphore(0)
    last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    client = await connected(server)
    async with client, asyncio.timeout(50), asyncio.TaskGroup() as tasks:
        whole = tasks.create_task(follow(client, last))
        of_ann = tasks.create_task(follow(client, last, users=["ann"]))
        only_rounds = tasks.create_task(follow(client, last, kinds=["AppCompleted", "NodeRecovered"]))
        pieces = tasks.create_task(follow_in_pieces(server, last))
        writers = [tasks.create_task(write(log, user, count, acknowledged, progress)) for user in users]
        for _ in range(2):
            for _ in range(count * len(users) // 3):
                await progress.acquire()
            await server.restart()
        for writer in writers:
            await writer
        last.set_result(await log.end() + 2)
        for number in (0, 2):  # What each of the followers waits for, whatever its filter.
            subject, event = said_by("ann", number)
            seq = (await log.append(subject, encode(event), msg_id=f"last-{number}")).seq
        assert seq == last.result()
    records = [record async for batch in log.read() for record in batch]
    assert {record.msg_id: record.seq for record in records[:-2]} == acknowledged
    assert len(acknowledged) == count * len(users)
    expected = [one for record in records for one in logged(record)]
    # Each ended with the first event of the last round that it was given.
    rounds = [one for one in expected if one.round]
    of_hers = [one for one in expected if one.subject.endswith(".ann") or getattr(one.event, "app", "") == "anns"]
    assert whole.result() == expected[:-2]
    assert pieces.result() == expected[:-2]
    assert only_rounds.result() == rounds[:-2]
    assert of_ann.result() == of_hers[:-1]


async def consumers(server: NatsServer) -> int:
    owner = await nats.connect(server.url)
    try:
        return len(await owner.jetstream().consumers_info(f"DORM-{CLUSTER}"))
    finally:
        await owner.close()


async def none_left(server: NatsServer) -> None:
    """A reader that leaves does not wait for deletions."""
    async with asyncio.timeout(10):
        while await consumers(server):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["break", "close", "cancel", "client"])
async def test_an_early_end_leaves_nothing_at_the_server(server: NatsServer, log: EventLog, how: str) -> None:
    for number in range(3):
        subject, event = said_by("ann", number)
        await log.append(subject, encode(event))
    client = await connected(server)
    if how == "break":
        async for one in client.events():
            assert one.position.seq == 1
            break
    elif how == "close":
        async with aclosing(client.events(users=["ann"])) as events:
            assert (await anext(events)).position.seq == 1
            assert await consumers(server) == 1
    elif how == "cancel":
        waiting = asyncio.create_task(follow(client, asyncio.get_running_loop().create_future()))
        while not await consumers(server):
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait({waiting})
    else:
        async for _ in client.events():
            await client.close()
            break
    if how != "client":
        await none_left(server)
        await client.close()
    else:
        # The server's own time limit for an unused consumer does the rest.
        assert await consumers(server) == 1
