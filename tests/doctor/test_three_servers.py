"""Three real servers, one of which is killed: the doctor names it, and the consequences for the copies of the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dorm.doctor.cluster_findings import judge_clock, judge_servers, judge_streams
from events import subjects
from events.appending import append_event
from events.kinds import NodeJoined
from events.log.interface import AskRefused
from events.nats.connection import Connection
from tests.lab.machines.nats_server import NatsCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from dorm.doctor.findings import Finding

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.soak]


async def looked(connection: Connection) -> list[Finding]:
    servers, streams, clock = await connection.inspect()
    found = [*judge_servers(servers), *judge_streams(streams, len(servers))]
    return [*found, judge_clock("clock", "server", clock, "this one")]


def wrong(findings: list[Finding]) -> set[tuple[str, str]]:
    return {(one.check, one.about) for one in findings if one.level == "wrong"}


async def test_a_server_that_is_gone_is_named(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path)
    await cluster.start()
    try:
        connection = await Connection.open(cluster.url, "lab", create=True, timeout=20.0)
        try:
            await append_event(
                connection.log,
                subjects.fact("lab", "NodeJoined", "n1"),
                NodeJoined(id="n1.joined", node="n1", address="a", capacity={"cpu": 1}, ports=(20_000, 20_099)),
            )
            async with asyncio.timeout(30):
                while wrong(well := await looked(connection)):
                    pass
            assert {one.about for one in well if one.check == "servers" and one.level == "ok"} == {
                server.name for server in cluster.servers
            }
            leader = await cluster.leader("DORM-lab")
            gone = next(one for one in cluster.servers if one is not leader)
            address = gone.url.split("//")[1]
            await gone.kill()
            async with asyncio.timeout(60):
                while ("quorum", "DORM-lab") not in wrong(found := await looked(connection)):
                    pass
            assert any(one.check == "servers" and address in one.about for one in found)
            assert any(gone.name in one.text for one in found if one.check == "quorum")
        finally:
            await connection.close()
    finally:
        await cluster.stop()


async def test_every_listener_answers(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path)
    await cluster.start()
    try:
        asker = await Connection.open(cluster.url, "lab", create=True, timeout=20.0)
        others = [await Connection.open(cluster.url, "lab", timeout=20.0) for _ in range(3)]
        subject = subjects.ask_masters("lab")
        assert await asker.everyone(subject, wait_s=0.3) == []

        async def say(question: bytes) -> AsyncIterator[bytes]:
            del question
            yield b"here"

        async def refuse(question: bytes) -> AsyncIterator[bytes]:
            raise AskRefused("no")
            yield question

        answering = [
            asyncio.create_task(one.bus.answer(subject, answerer))
            for one, answerer in zip(others, (say, say, refuse), strict=True)
        ]
        async with asyncio.timeout(20):
            while len(said := await asker.everyone(subject, wait_s=1.0)) < 2:
                pass
        assert [one.body for one in said] == [b"here", b"here"]
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        for one in (asker, *others):
            await one.close()
    finally:
        await cluster.stop()
