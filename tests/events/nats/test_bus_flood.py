"""Floods of messages and requests harm no one else: queues are bounded, and omissions are reported."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from events import subjects
from events.log.records import LogRefused, LogUnavailable
from events.nats.connection import Connection
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]
CLUSTER = "flood"


async def test_a_slow_listener_misses_heartbeats_and_delays_nothing(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.nats.bus._WAITING_REPORTS", 100)
    connection = await Connection.open(nats_server.url, CLUSTER, create=True)
    client = connection._link.client
    report = subjects.report(CLUSTER, "n1")
    with capture_logs() as lines, pytest.MonkeyPatch.context() as patch:
        patch.setattr("events.logger._configured", lambda: __import__("structlog"))
        async with asyncio.timeout(40), aclosing(connection.bus.reports(subjects.reports(CLUSTER))) as reports:
            first = asyncio.ensure_future(anext(reports))
            while not first.done():
                await connection.bus.publish_report(report, b"first")
                await asyncio.sleep(0)
            await first
            for number in range(2000):  # While no task reads the messages.
                await client.publish(report, b"%d" % number)
            await client.flush()
            assert (await connection.log.append(f"dorm.{CLUSTER}.A.x", b"")).seq == 1
            taken = [await anext(reports) for _ in range(100)]
            while True:
                later = asyncio.ensure_future(anext(reports))
                await connection.bus.publish_report(report, b"later")
                if (await later).body == b"later":
                    break
    assert len(taken) == 100
    (said,) = [line for line in lines if line["log_level"] == "warning"]
    assert said["event"] == "messages are left out, as they come faster than they are taken"
    await connection.close()


async def test_too_many_questions_are_refused_and_the_answerer_answers_on(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.nats.bus._MOST_ANSWERS", 5)
    asker, answerer = [await Connection.open(nats_server.url, CLUSTER, create=True) for _ in range(2)]
    ask, free = subjects.ask(CLUSTER, "n1", "logs"), asyncio.Event()

    async def wait(question: bytes) -> AsyncGenerator[bytes, None]:
        if question != b"ping":
            await free.wait()
        yield question

    async def asked(question: bytes) -> bytes:
        return b"".join([piece async for piece in asker.bus.ask(ask, question)])

    answering = asyncio.create_task(answerer.bus.answer(ask, wait))
    async with asyncio.timeout(40):
        while True:  # Until it is heard.
            try:
                assert await asked(b"ping") == b"ping"
                break
            except LogUnavailable:
                await asyncio.sleep(0)
        asking = [asyncio.create_task(asked(b"%d" % number)) for number in range(300)]
        refused = 0
        while refused < 295:
            done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                with raises(LogRefused, "agent.refused", "too many"):
                    await one
                asking.remove(one)
                refused += 1
        free.set()
        assert len(await asyncio.gather(*asking)) == 5
        assert await asked(b"ping") == b"ping"
    answering.cancel()
    await asyncio.wait({answering})
    for connection in (asker, answerer):
        await connection.close()


async def test_askers_that_read_no_answer_do_not_block_others(nats_server: NatsServer) -> None:
    """Questions how a master or an agent is name no asker, so one who asks without end has to be as good as any other."""
    hostile, asker, answerer = [await Connection.open(nats_server.url, CLUSTER, create=True) for _ in range(3)]
    subject, called = subjects.ask_masters(CLUSTER), 0

    async def status(question: bytes) -> AsyncGenerator[bytes, None]:
        nonlocal called
        assert question == b""
        called += 1
        yield b"well %d" % called

    answering = asyncio.create_task(answerer.bus.answer_all(subject, status))
    async with asyncio.timeout(40):
        while not await asker.everyone(subject, wait_s=0.2):  # Until it is heard.
            pass
        client = hostile._link.client
        inbox = client.new_inbox()
        await client.subscribe(inbox)  # It listens, and acknowledges nothing.
        for _ in range(3000):
            await client.publish(subject, b"{}", reply=inbox)
        await client.flush()
        before = called
        while not (said := await asker.everyone(subject, wait_s=0.2)):
            pass
        assert [one.body[:5] for one in said] == [b"well "]
        assert before < called < 3000
        assert b"".join([piece async for piece in asker.bus.ask(subject, b"{}")]).startswith(b"well ")
    answering.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await answering
    for connection in (hostile, asker, answerer):
        await connection.close()


async def test_a_failed_shared_answer_is_reported_and_the_next_one_arrives(nats_server: NatsServer) -> None:
    asker, answerer = [await Connection.open(nats_server.url, CLUSTER, create=True) for _ in range(2)]
    subject, fails = subjects.ask_agents(CLUSTER), True

    async def status(question: bytes) -> AsyncGenerator[bytes, None]:
        if fails:
            raise RuntimeError("a fault")
        yield b"well"

    answering = asyncio.create_task(answerer.bus.answer_all(subject, status))
    async with asyncio.timeout(40):
        with raises(LogRefused, "agent.refused", "the agent failed"):
            while True:
                with contextlib.suppress(LogUnavailable):
                    [piece async for piece in asker.bus.ask(subject, b"")]
        fails = False
        assert [piece async for piece in asker.bus.ask(subject, b"")] == [b"well"]
        await answerer.close()
        with raises(LogUnavailable, "log.closed"):
            await answering
    await asker.close()
