"""Stores of nodes' parts: in memory, on a real server, and a writer that stops in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from events.log.records import LogRefused, LogUnavailable
from events.log.stores import MemoryParts, NoParts
from events.nats.connection import Connection
from tests.errors import raises
from tests.events.log.parts_conformance import PartsConformance
from tests.events.log.readable_conformance import CLUSTER
from tests.events.nats.test_log import delete_streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.log.stores import Parts
    from tests.lab.machines.nats_server import NatsServer


class TestMemoryParts(PartsConformance):
    @pytest.fixture
    def parts(self) -> Parts:
        return MemoryParts()


@pytest_asyncio.fixture
async def connection(nats_server: NatsServer) -> AsyncIterator[Connection]:
    await delete_streams(nats_server.url)
    connection = await Connection.open(nats_server.url, CLUSTER, create=True)
    yield connection
    await connection.close()
    await delete_streams(nats_server.url)


@pytest.mark.nats
class TestJetStreamParts(PartsConformance):
    @pytest.fixture
    def parts(self, connection: Connection) -> Parts:
        return connection.log.parts


@pytest.mark.nats
async def test_an_unfinished_part_does_not_exist(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, large = connection.stream.parts, b"x" * 1_000_000
    revision = await parts.put("n1", large, 0)
    publish = parts._publish

    async def stops(subject: str, body: bytes, fence: int) -> int:
        if subject.endswith(".0"):
            raise LogUnavailable("it stopped")
        return await publish(subject, body, fence)

    monkeypatch.setattr(parts, "_publish", stops)
    with pytest.raises(LogUnavailable):
        await parts.put("n1", b"y" * 1_000_000, revision)
    monkeypatch.undo()
    last = await parts.last("n1")
    assert last is not None
    assert (last.body, last.revision) == (b"", revision)
    await parts.put("n1", large, last.revision)
    assert [part.body for part in await parts.all()] == [large]


@pytest.mark.nats
async def test_the_lease_states_whether_its_holder_writes_parts(connection: Connection) -> None:
    parts, leadership = connection.log.parts, connection.leadership
    assert await parts.written() is None
    held = await leadership.take("m1", 2.0, None)
    assert held is not None
    assert await parts.written()
    parts.writes(False)
    held = await leadership.renew(held)
    assert held is not None
    assert await parts.written() is False
    await leadership.give_back(held)
    assert await parts.written() is None


async def test_a_log_without_a_store_has_none() -> None:
    parts = NoParts()
    assert await parts.written() is False
    with raises(LogRefused, "part.no_store"):
        await parts.put("n1", b"", 0)
