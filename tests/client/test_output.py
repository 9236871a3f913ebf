"""Output with times, asked for over a server that fails."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from agents.answering import LogAnswerer
from agents.desired import Desired
from agents.runtime.interface import Key
from agents.runtime.process.runtime import ProcessRuntime
from dorm.client.client import Client
from dorm.client.errors import NotFound
from dorm.client.output import Ran, lines, timed_lines
from events import subjects
from events.nats.connection import Connection
from tests.agents.harness import Harness, says
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from dorm.core.app import App
    from events.log.interface import Answerer
    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]
CLUSTER = "output"
COUNT = 'i=0; while :; do i=$((i+1)); echo "line $i"; sleep 0.02; done'


@asynccontextmanager
async def answered(server: NatsServer, answerer: Answerer) -> AsyncIterator[Client]:
    """A client of a node with this answerer."""
    agent = await Connection.open(server.url, CLUSTER, create=True)
    answers = asyncio.create_task(agent.bus.answer(subjects.ask(CLUSTER, "n1", "logs"), answerer))
    client = await Client.open(server.url, CLUSTER)
    try:
        yield client
    finally:
        answers.cancel()
        await asyncio.gather(answers, return_exceptions=True)
        await client.close()
        await agent.close()


def ran(key: Key) -> Ran:
    return Ran(cast("App", SimpleNamespace(id=key.app, tenant="")), key.generation, {key.slot: "n1"})


async def test_a_followed_answer_continues_after_an_outage(server: NatsServer, tmp_path: Path) -> None:
    """Each line once, though a `tail` was asked for, and lines were written while the server was down."""
    harness = Harness(lambda: ProcessRuntime("n1", tmp_path / "n1"), "", tmp_path, "")
    async with harness.opened() as runtime:
        spec = harness.shell(COUNT)
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"line 5\n")
        async with answered(server, LogAnswerer(runtime, Desired("n1"))) as client:
            found = list[int]()
            pieces = client.output.read_timed(ran(spec.key), 0, follow=True, tail=3)
            async with asyncio.timeout(40), aclosing(timed_lines(pieces)) as lines:  # type: ignore[type-var]
                async for line in lines:
                    assert line.time
                    found.append(int(line.text.split()[1]))
                    if len(found) == 10:
                        await server.kill()
                        await says(runtime, spec.key, b"line %d\n" % (found[-1] + 20))
                        await server.start()
                    if len(found) == 60:
                        break
        assert found == list(range(found[0], found[0] + 60))
        assert found[0] > 1
    await harness.clean()


@pytest.mark.parametrize("timed", [False, True])
async def test_a_reader_that_does_not_keep_up_learns_what_it_missed(
    server: NatsServer, tmp_path: Path, timed: bool
) -> None:
    harness = Harness(lambda: ProcessRuntime("n1", tmp_path / "n1", log_cap=100_000), "", tmp_path, "")
    async with harness.opened() as runtime:
        # The log moves aside about once a second.
        spec = harness.shell("seq 1 200000; sleep 2; seq 200001 400000; sleep 2; seq 400001 400010")
        await runtime.ensure(spec)
        async with answered(server, LogAnswerer(runtime, Desired("n1"))) as client:
            missed = list[tuple[int | None, int]]()

            def note(lines: int | None, size: int) -> None:
                missed.append((lines, size))

            if timed:
                pieces = client.output.read_timed(ran(spec.key), 0, follow=True, missed=note)
                found = timed_lines(pieces)
            else:
                found = lines(client.output.read_slot(ran(spec.key), 0, follow=True, tail=None, missed=note))
            numbers = [int((await anext(found)).text)]
            await says(runtime, spec.key, b"400010\n")
            numbers += [int(line.text) async for line in found]
        assert missed
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 400_010
        assert len(numbers) + sum(lines or 0 for lines, _ in missed) == 400_010
    await harness.clean()


async def test_output_of_an_agent_that_knows_no_times_is_read_without_them(server: NatsServer) -> None:
    async def old(question: bytes) -> AsyncIterator[bytes]:
        del question
        yield b"line 1\n"
        yield b"line 2\n"

    async with answered(server, old) as client:
        found = client.output.read_slot(ran(Key("app", 1, 0)), 0, follow=False, tail=None)
        assert [chunk async for chunk in found] == [b"line 1\n", b"line 2\n"]


async def test_an_agent_that_knows_no_times_is_named(server: NatsServer) -> None:
    async def old(question: bytes) -> AsyncIterator[bytes]:
        assert b'"timed":true' in question
        yield b"line 1\n"

    async with answered(server, old) as client:
        with raises(NotFound, "logs.no_times"):
            await anext(aiter(client.output.read_timed(ran(Key("app", 1, 0)), 0)))
        with raises(NotFound, "logs.no_times"):
            await anext(aiter(client.output.read_slot(ran(Key("app", 1, 0)), 0, follow=False, tail=None, since=5)))
