"""Heartbeats and questions, over NATS and in memory."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from nats import connect

from events import subjects
from events.log.interface import AskRefused
from events.log.memory import MemoryBus
from events.log.records import LogRefused, LogUnavailable
from events.nats import bus as nats_bus
from events.nats.connection import Connection
from tests.errors import raises
from tests.lab.machines.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from nats.aio.msg import Msg

    from events.log.interface import Answerer, Bus
    from events.log.records import Record

CLUSTER = "bus"
ASK = subjects.ask(CLUSTER, "n1", "logs")


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.nats)])
def bus_url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return ""
    server: NatsServer = request.getfixturevalue("nats_server")
    return server.url


@pytest_asyncio.fixture
async def buses(bus_url: str) -> AsyncIterator[tuple[Bus, Bus]]:
    """The asker's and the answerer's."""
    if not bus_url:
        bus = MemoryBus(time.time_ns)
        yield bus, bus
        return
    connections = [await Connection.open(bus_url, CLUSTER, create=True) for _ in range(2)]
    yield connections[0].bus, connections[1].bus
    for connection in connections:
        await connection.close()


@asynccontextmanager
async def answering(bus: Bus, answerer: Answerer, asker: Bus) -> AsyncIterator[None]:
    """Until the answerer is heard, then while the test asks."""

    async def answer_or_ping(question: bytes) -> AsyncGenerator[bytes, None]:
        if question == b"ping":
            yield b"pong"
            return
        async with aclosing(answerer(question)) as pieces:  # type: ignore[type-var]  # all here are generators
            async for piece in pieces:
                yield piece

    task = asyncio.create_task(bus.answer(ASK, answer_or_ping))
    async with asyncio.timeout(20):
        while True:
            try:
                assert await answer(asker, b"ping") == [b"pong"]
                break
            except LogUnavailable:
                await asyncio.sleep(0)
    yield
    task.cancel()
    await asyncio.wait({task})


async def answer(bus: Bus, question: bytes, timeout: float = 5.0) -> list[bytes]:
    return [piece async for piece in bus.ask(ASK, question, timeout=timeout)]


async def test_an_answer_arrives_in_pieces_and_ends(buses: tuple[Bus, Bus]) -> None:
    async def count(question: bytes) -> AsyncGenerator[bytes, None]:
        for number in range(int(question)):
            yield b"%d" % number

    async with answering(buses[1], count, buses[0]), asyncio.timeout(20):
        assert await answer(buses[0], b"300") == [b"%d" % number for number in range(300)]
        assert await answer(buses[0], b"0") == []


async def test_empty_pieces_are_left_out(buses: tuple[Bus, Bus]) -> None:
    async def with_gaps(question: bytes) -> AsyncGenerator[bytes, None]:
        for piece in (b"", b"one", b"", b"two", b""):
            yield piece

    async with answering(buses[1], with_gaps, buses[0]), asyncio.timeout(20):
        assert await answer(buses[0], b"") == [b"one", b"two"]


async def test_many_ask_at_once(buses: tuple[Bus, Bus]) -> None:
    async def echo(question: bytes) -> AsyncGenerator[bytes, None]:
        yield question
        yield question

    async with answering(buses[1], echo, buses[0]), asyncio.timeout(20):
        answers = await asyncio.gather(*(answer(buses[0], b"%d" % number) for number in range(50)))
    assert answers == [[b"%d" % number] * 2 for number in range(50)]


async def test_a_refusal_reaches_the_asker_unchanged(buses: tuple[Bus, Bus]) -> None:
    async def refuse(question: bytes) -> AsyncGenerator[bytes, None]:
        yield b"so far"
        raise AskRefused("slot 3 is not on node n1: für immer")

    pieces = []
    async with answering(buses[1], refuse, buses[0]), asyncio.timeout(20):
        asking = buses[0].ask(ASK, b"")
        pieces.append(await anext(asking))
        with pytest.raises(LogRefused, match=r"^slot 3 is not on node n1: für immer$"):
            await anext(asking)
    assert pieces == [b"so far"]


async def test_a_missing_peer_is_reported_at_once(buses: tuple[Bus, Bus]) -> None:
    async with asyncio.timeout(20):
        with raises(LogUnavailable, "agent.no_answer"):
            await answer(buses[0], b"", timeout=1000.0)


class Endless:
    """An answerer that follows something for ever, and notes how it ends."""

    def __init__(self, silent: bool) -> None:
        self.silent = silent
        self.begun = asyncio.Event()
        self.closed = asyncio.Event()
        self.given = 0

    async def __call__(self, question: bytes) -> AsyncGenerator[bytes, None]:
        try:
            self.begun.set()
            while True:
                self.given += 1
                yield b"%d" % self.given
                if self.silent and self.given >= 3:
                    await asyncio.Event().wait()
        finally:
            self.closed.set()


@pytest.mark.parametrize("silent", [False, True])
async def test_an_endless_answer_stops_when_the_asker_leaves(buses: tuple[Bus, Bus], silent: bool) -> None:
    endless = Endless(silent)
    async with answering(buses[1], endless, buses[0]), asyncio.timeout(20):
        async with aclosing(buses[0].ask(ASK, b"")) as asking:
            assert [await anext(asking) for _ in range(3)] == [b"1", b"2", b"3"]
        await endless.closed.wait()


async def test_an_endless_answer_stops_when_the_asker_is_cancelled(buses: tuple[Bus, Bus]) -> None:
    endless = Endless(silent=True)
    async with answering(buses[1], endless, buses[0]), asyncio.timeout(20):
        asking = asyncio.create_task(answer(buses[0], b""))
        await endless.begun.wait()
        asking.cancel()
        await asyncio.wait({asking})
        await endless.closed.wait()


async def test_answers_end_with_the_answerer(buses: tuple[Bus, Bus]) -> None:
    endless = Endless(silent=True)
    answerer = asyncio.create_task(buses[1].answer(ASK, endless))
    async with asyncio.timeout(20), aclosing(buses[0].ask(ASK, b"", timeout=1.0)) as asking:
        while True:  # Until someone listens.
            try:
                await anext(asking)
                break
            except LogUnavailable:
                await asyncio.sleep(0)
                asking = buses[0].ask(ASK, b"", timeout=1.0)
        answerer.cancel()
        await asyncio.wait({answerer})
        assert answerer.cancelled()
        if not isinstance(buses[0], MemoryBus):
            await endless.closed.wait()
            with pytest.raises(LogUnavailable):
                [piece async for piece in asking]
        await asking.aclose()
        await endless.closed.wait()


async def test_heartbeats(buses: tuple[Bus, Bus]) -> None:
    subject, other = subjects.report(CLUSTER, "n1"), subjects.report(CLUSTER, "n2")
    assert await buses[0].last_report(subjects.report(CLUSTER, "never")) is None
    async with asyncio.timeout(20), aclosing(buses[0].reports(subjects.reports(CLUSTER))) as reports:
        hearing = asyncio.ensure_future(anext(reports))
        while not hearing.done():
            await buses[1].publish_report(subject, b"beat")
            await asyncio.sleep(0)
        first = await hearing
        assert (first.subject, first.body) == (subject, b"beat")
        await buses[1].publish_report(other, b"last")
        seen: Record = first
        while seen.subject != other:
            seen = await anext(reports)
        assert seen.body == b"last"
    stored = await buses[0].last_report(other)
    assert stored is not None
    assert (stored.subject, stored.body) == (other, b"last")


@pytest_asyncio.fixture
async def nats(nats_server: NatsServer) -> AsyncIterator[tuple[Bus, Bus]]:
    connections = [await Connection.open(nats_server.url, CLUSTER, create=True) for _ in range(2)]
    yield connections[0].bus, connections[1].bus
    for connection in connections:
        await connection.close()


@pytest.mark.nats
async def test_a_failing_handler_reports_the_error_and_keeps_answering(nats: tuple[Bus, Bus]) -> None:
    async def faulty(question: bytes) -> AsyncGenerator[bytes, None]:
        if question == b"fail":
            raise RuntimeError("a fault")
        yield b"fine"

    async with answering(nats[1], faulty, nats[0]), asyncio.timeout(20):
        with raises(LogRefused, "agent.refused", "failed"):
            await answer(nats[0], b"fail")
        assert await answer(nats[0], b"") == [b"fine"]


@pytest.mark.nats
async def test_an_abandoned_answer_ends(nats: tuple[Bus, Bus], monkeypatch: pytest.MonkeyPatch) -> None:
    """As between accounts, where no server says that an asker was killed."""
    monkeypatch.setattr(nats_bus, "_GONE_S", 1.5)
    endless = Endless(silent=True)
    client = vars(nats[0])["_client"]
    inbox = client.new_inbox()
    await client.subscribe(inbox)  # It listens, and acknowledges nothing.
    async with answering(nats[1], endless, nats[0]), asyncio.timeout(20):
        await client.publish(ASK, b"", reply=inbox)
        await endless.closed.wait()


@pytest.mark.nats
async def test_a_slow_asker_slows_the_answerer_down(nats: tuple[Bus, Bus]) -> None:
    endless = Endless(silent=False)
    async with answering(nats[1], endless, nats[0]), asyncio.timeout(20):
        async with aclosing(nats[0].ask(ASK, b"")) as asking:
            await anext(asking)
            for _ in range(20):  # Others get through many times meanwhile, so it has had the time.
                assert await answer(nats[0], b"ping") == [b"pong"]
            assert endless.given <= 5
        await endless.closed.wait()


@pytest.mark.nats
async def test_a_silent_answerer_shows_that_it_is_there(nats: tuple[Bus, Bus]) -> None:
    done = asyncio.Event()

    async def think(question: bytes) -> AsyncGenerator[bytes, None]:
        await done.wait()
        yield b"at last"

    async with answering(nats[1], think, nats[0]), asyncio.timeout(20):
        asking = asyncio.create_task(answer(nats[0], b"", timeout=1.8))
        finished, _ = await asyncio.wait({asking}, timeout=4.0)  # More than twice the asker's patience.
        assert not finished
        done.set()
        assert await asking == [b"at last"]


@pytest.mark.nats
async def test_a_piece_too_large_is_refused(nats: tuple[Bus, Bus]) -> None:
    async def large(question: bytes) -> AsyncGenerator[bytes, None]:
        yield bytes(7_000_000)
        yield bytes(9_000_000)

    async with answering(nats[1], large, nats[0]), asyncio.timeout(20):
        asking = nats[0].ask(ASK, b"")
        assert len(await anext(asking)) == 7_000_000
        with raises(LogRefused, "agent.refused", "larger"):
            await anext(asking)


@pytest.mark.nats
async def test_an_answer_cut_by_a_killed_server_fails_and_has_no_hole(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    connections = [await Connection.open(server.url, CLUSTER, create=True) for _ in range(2)]
    endless = Endless(silent=False)
    async with answering(connections[1].bus, endless, connections[0].bus), asyncio.timeout(30):
        pieces: list[bytes] = []
        asking = connections[0].bus.ask(ASK, b"", timeout=2.0)
        pieces += [await anext(asking) for _ in range(10)]
        await server.restart()
        try:
            while len(pieces) < 1000:  # Either it continues without a gap, or it fails.
                pieces.append(await anext(asking))
        except LogUnavailable:
            pass
        await asking.aclose()
        await endless.closed.wait()
    assert pieces == [b"%d" % number for number in range(1, len(pieces) + 1)]
    for connection in connections:
        await connection.close()
    await server.stop()


async def test_questions_that_are_cancelled_at_any_point_end_no_connection(buses: tuple[Bus, Bus]) -> None:
    """A PONG without a waiting task must not end the client's reading."""

    async def echo(question: bytes) -> AsyncGenerator[bytes, None]:
        yield question

    async with answering(buses[1], echo, buses[0]), asyncio.timeout(20):
        for turns in range(30):
            asking = asyncio.create_task(answer(buses[0], b"asked"))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})
        assert await answer(buses[0], b"still there") == [b"still there"]


@pytest.mark.nats
async def test_an_asker_that_reads_nothing_leaves_room_for_others(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = "bus-shares"
    connections = [await Connection.open(nats_server.url, cluster, create=True) for _ in range(2)]
    asker, agent = connections
    pattern, mine, others = (subjects.session(cluster, "n1", "session", tenant, "x") for tenant in ("*", "a", "b"))
    begun: list[str] = []

    def answerer_of(subject: str) -> Answerer:
        async def answer(question: bytes) -> AsyncIterator[bytes]:
            begun.append(subject)
            yield question

        return answer

    answers = asyncio.create_task(agent.bus.answer_each(pattern, answerer_of))
    client = await connect(nats_server.url)
    try:
        refused = asyncio.Event()

        async def hear(message: Msg) -> None:  # It acknowledges no piece.
            if "Dorm-Refused" in (message.headers or {}):
                refused.set()

        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=hear)
        async with asyncio.timeout(60):
            while not refused.is_set():
                await client.publish(mine, b"question", reply=inbox)
                await asyncio.sleep(0.001)
            async with aclosing(asker.bus.ask(others, b"question")) as pieces:
                assert [piece async for piece in pieces] == [b"question"]
            # Nor do questions that are being refused take room, however many they are.
            refusals = asyncio.Semaphore(0)

            async def refuses_slowly(question: bytes) -> AsyncIterator[bytes]:
                refusals.release()
                await asyncio.Future()
                yield b""

            monkeypatch.setattr(nats_bus, "_too_busy", refuses_slowly)
            for _ in range(nats_bus._MOST_ANSWERS):
                await client.publish(mine, b"question", reply=inbox)
                await refusals.acquire()
            async with aclosing(asker.bus.ask(others, b"question")) as pieces:
                assert [piece async for piece in pieces] == [b"question"]
        assert begun.count(mine) == nats_bus._MOST_ANSWERS // 2
    finally:
        answers.cancel()
        await client.close()
        for connection in connections:
            await connection.close()
