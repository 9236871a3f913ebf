"""The NATS server of the tests keeps acknowledged messages, whatever ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nats
import pytest

from tests.lab.machines.nats_server import NatsServer, NatsServerFailed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nats


async def test_the_shared_server(nats_server: NatsServer) -> None:
    client = await nats.connect(nats_server.url)
    assert client.max_payload == 8 << 20
    await client.jetstream().account_info()
    await client.close()


async def test_a_server_returns_at_the_same_url_with_its_data(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    await server.start()
    url = server.url
    try:
        client = await nats.connect(url)
        await client.jetstream().add_stream(name="kept", subjects=["kept"])
        await client.jetstream().publish("kept", b"one")
        await client.close()
        await server.restart()
        assert server.url == url
        client = await nats.connect(url)
        assert (await client.jetstream().get_msg("kept", 1)).data == b"one"
        await client.close()
    finally:
        await server.stop()


async def test_a_server_that_cannot_start_reports_the_cause(nats_server: NatsServer, tmp_path: Path) -> None:
    port = int(nats_server.url.rpartition(":")[2])
    with pytest.raises(NatsServerFailed, match="address already in use"):
        await NatsServer(tmp_path, port=port).start()
