"""Outages of the server: errors, requests and kept state meanwhile, and what resumes afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from events import subjects
from events.log.records import LogUnavailable, NotSent
from events.nats.connection import Connection
from events.nats.link import Link
from tests.errors import raises
from tests.events.log.conformance import fill
from tests.events.log.readable_conformance import ALICE, CLUSTER, read_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]
_LONG_S = 3600.0
"""A test that waits this long fails."""


@pytest_asyncio.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    connection = await Connection.open(server.url, CLUSTER, create=True)
    yield connection
    await connection.close()


class Outages:
    """What a connection says of itself."""

    def __init__(self, connection: Connection) -> None:
        self.lost, self.back = asyncio.Event(), asyncio.Event()
        connection.report_outages(lambda lost: (self.lost if lost else self.back).set())


async def test_appends_during_an_outage_are_refused_at_once_and_never_stored(
    server: NatsServer, connection: Connection
) -> None:
    outages = Outages(connection)
    await fill(connection.log, 1)
    await server.kill()
    async with asyncio.timeout(30):
        await outages.lost.wait()
        for number in range(3):
            with raises(NotSent, "log.not_sent"):
                await connection.log.append(ALICE, b"away", msg_id=f"away-{number}", timeout=_LONG_S)
        with pytest.raises(NotSent):
            await connection.bus.publish_report(subjects.report(CLUSTER, "n1"), b"away", timeout=_LONG_S)
        await server.start()
        await outages.back.wait()
        assert (await connection.log.append(ALICE, b"back", msg_id="away-0")).duplicate is False
    assert [record.body for record in await read_all(connection.log)] == [b"0", b"back"]
    assert await connection.bus.last_report(subjects.report(CLUSTER, "n1")) is None


async def test_an_append_whose_answer_was_lost_with_the_connection_fails_then_and_not_later(
    server: NatsServer, connection: Connection
) -> None:
    server.pause()
    appending = asyncio.create_task(connection.log.append(ALICE, b"", msg_id="lost", timeout=_LONG_S))
    await asyncio.wait({appending}, timeout=0.1)  # Until it is under way.
    await server.kill()
    async with asyncio.timeout(30):
        with raises(LogUnavailable, "log.unavailable") as error:
            await appending
    assert not isinstance(error.value, NotSent), "it may have been stored"
    await server.start()


async def test_a_frozen_server_is_left_although_it_takes_nothing_any_more(
    server: NatsServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stand, and output to them waits for it, which must not keep a client from leaving."""
    monkeypatch.setattr("events.nats.link._PING_S", 0.2)
    quick = await Connection.open(server.url, CLUSTER)
    outages = Outages(quick)
    server.pause()
    async with asyncio.timeout(40):
        large = [asyncio.create_task(quick.log.append(ALICE, bytes(1_000_000), timeout=_LONG_S)) for _ in range(32)]
        await outages.lost.wait()
        for one in large:
            with pytest.raises(LogUnavailable):
                await one
        server.resume()
        await outages.back.wait()
        await quick.log.append(ALICE, b"back", msg_id="back")
        server.pause()
        with contextlib.suppress(LogUnavailable):
            for _ in range(8):
                await quick.log.append(ALICE, bytes(1_000_000), timeout=0.1)
        await quick.close()
        server.resume()


async def test_heartbeats_and_questions_continue_after_a_restart(server: NatsServer, connection: Connection) -> None:
    other = await Connection.open(server.url, CLUSTER)

    async def echo(question: bytes) -> AsyncGenerator[bytes, None]:
        yield question

    ask, report = subjects.ask(CLUSTER, "n1", "logs"), subjects.report(CLUSTER, "n1")
    answering = asyncio.create_task(connection.bus.answer(ask, echo))
    async with asyncio.timeout(50), aclosing(connection.bus.reports(subjects.reports(CLUSTER))) as reports:
        for round_ in (b"before", b"after", b"again"):
            hearing = asyncio.ensure_future(anext(reports))
            while not hearing.done():
                with contextlib.suppress(LogUnavailable):
                    await other.bus.publish_report(report, round_, timeout=1.0)
                await asyncio.wait({hearing}, timeout=0.05)
            while hearing.result().body != round_:  # Further beats of the round before.
                hearing = asyncio.ensure_future(anext(reports))
                await hearing
            while True:
                with contextlib.suppress(LogUnavailable):
                    assert [piece async for piece in other.bus.ask(ask, round_)] == [round_]
                    break
            await server.restart()
    answering.cancel()
    await asyncio.wait({answering})
    await other.close()


async def test_ids_are_known_after_a_restart(server: NatsServer, connection: Connection) -> None:
    first = await connection.log.append(ALICE, b"", msg_id="known")
    for end in (server.kill, server.stop):
        await end()
        await server.start()
        again = None
        while again is None:  # The connection may not have noticed yet that its server has ended.
            with contextlib.suppress(LogUnavailable):
                again = await connection.log.append(ALICE, b"", msg_id="known")
        assert (again.seq, again.duplicate) == (first.seq, True)


async def test_reconnecting_ends_with_the_connection_even_if_it_is_not_cancelled(server: NatsServer) -> None:
    """A cancellation can be lost (`internals.AbortingClient`)."""
    link = await Link.open(server.url, name="test", timeout=10)
    lost = asyncio.Event()
    link.on_outage = lambda away: lost.set() if away else None
    await server.kill()
    async with asyncio.timeout(30):
        await lost.wait()
        reconnecting = [
            task for task in asyncio.all_tasks() if "_attempt_reconnect" in getattr(task.get_coro(), "__qualname__", "")
        ]
        assert len(reconnecting) == 1
        link.client.abandoned = True
        await asyncio.wait(reconnecting)
    await link.close()
