"""The stream of progress on a real NATS server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import nats
import nats.js.errors
import pytest
import pytest_asyncio

from events.log.records import LogUnavailable
from events.nats.connection import Connection
from events.nats.stores import progress_stream
from tests.events.log.progress_conformance import A, ProgressConformance, everything
from tests.events.log.readable_conformance import CLUSTER
from tests.events.nats.test_log import delete_streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.log.interface import EventLog
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats


@pytest_asyncio.fixture
async def connection(nats_server: NatsServer) -> AsyncIterator[Connection]:
    await delete_streams(nats_server.url)
    connection = await Connection.open(nats_server.url, CLUSTER, create=True)
    yield connection
    await connection.close()
    await delete_streams(nats_server.url)


class TestJetStreamProgress(ProgressConformance):
    @pytest.fixture
    def log(self, connection: Connection) -> EventLog:
        return connection.log


async def test_the_oldest_reports_are_dropped_and_the_stream_is_never_full(
    connection: Connection, nats_server: NatsServer
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await nats.connect(nats_server.url)
        stack.push_async_callback(client.close)
        stream = client.jetstream()
        config = (await stream.stream_info(progress_stream(CLUSTER))).config
        await stream.update_stream(config.evolve(max_msgs_per_subject=3))
        for number in range(10):
            await connection.log.progress.put(A, b"%d" % number)
        assert [one.body for one in await everything(connection.log.progress)] == [b"7", b"8", b"9"]
        assert [one.seq for one in await everything(connection.log.progress, after=2)] == [8, 9, 10]


async def test_a_cluster_without_the_stream_has_no_progress(connection: Connection, nats_server: NatsServer) -> None:
    """One that an earlier release made; a master creates the stream when it starts."""
    client = await nats.connect(nats_server.url)
    await client.jetstream().delete_stream(progress_stream(CLUSTER))
    await client.close()
    progress = connection.log.progress
    assert (await progress.end(), await everything(progress), await progress.newest()) == (0, [], [])
    assert await progress.at_time(5) == 0
    with pytest.raises(LogUnavailable):
        await progress.put(A, b"1")
    again = await Connection.open(nats_server.url, CLUSTER, create=True)
    await progress.put(A, b"2")
    assert [one.body for one in await progress.newest()] == [b"2"]
    await again.close()
