"""The comparison streams of shadows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nats
import pytest

from events.nats.link import Link
from events.nats.stores import Comparisons, shadow_config, shadow_stream
from tests.lab.machines.nats_server import NatsServer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nats


async def test_a_server_with_less_room_than_a_stream_sets_aside_holds_one(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", max_store=16 << 20)
    assert (shadow_config("small").max_bytes or 0) > 16 << 20
    await server.start()
    link = await Link.open(server.url, name="shadow", timeout=5.0)
    client = await nats.connect(server.url)
    try:
        for _ in range(2):
            comparisons = Comparisons(link, "small", "static", "ann")
            await comparisons.prepare()
            await comparisons.publish(b"{}")
        info = await client.jetstream().stream_info(shadow_stream("small"))
        assert info.state.messages == 2
    finally:
        await client.close()
        await link.close()
        await server.stop()
