"""The log on a real NATS server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import nats
import nats.js.errors
import pytest
import pytest_asyncio

from events.nats.connection import Connection
from events.nats.streams import stream_configs
from tests.events.log.conformance import LogConformance
from tests.events.log.readable_conformance import CLUSTER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.log.interface import EventLog
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats


class TestJetStreamLog(LogConformance):
    @pytest_asyncio.fixture
    async def log(self, nats_server: NatsServer) -> AsyncIterator[EventLog]:
        connection = await Connection.open(nats_server.url, CLUSTER, create=True)
        yield connection.log
        await connection.close()
        await delete_streams(nats_server.url)


async def delete_streams(url: str) -> None:
    """Our logs forbid deleting a record, but the server's owner may delete the whole stream."""
    client = await nats.connect(url)
    for config in stream_configs(CLUSTER):
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await client.jetstream().delete_stream(str(config.name))
    await client.close()
