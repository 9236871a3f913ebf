"""A server without room: the errors, what is kept, and how it continues when there is room again."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import nats
import pytest

from events.log.records import LogError, LogFull, LogUnavailable
from events.nats.connection import Connection
from events.nats.streams import log_stream
from tests.events.log.readable_conformance import ALICE, CLUSTER
from tests.lab.machines.nats_server import NatsServer
from tests.lab.machines.small_disk import small_disk

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.interface import EventLog, ReadableLog

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]
_PIECE = 1_000_000


async def fill_up(log: EventLog, subject: str = ALICE, size: int = _PIECE) -> tuple[dict[str, int], LogError]:
    """What was acknowledged before the first error, and that."""
    stored: dict[str, int] = {}
    while True:
        msg_id = f"id-{len(stored)}"
        try:
            stored[msg_id] = (await log.append(subject, os.urandom(size), msg_id=msg_id, timeout=1.0)).seq
        except LogError as error:
            return stored, error


async def kept(log: ReadableLog) -> dict[str, int]:
    return {record.msg_id: record.seq async for batch in log.read() for record in batch}


@pytest.mark.parametrize("limit", [None, 1 << 40])
async def test_a_full_disk_loses_nothing_and_work_continues_when_there_is_room(
    tmp_path: Path, limit: int | None
) -> None:
    """With a limit of its own, by default three quarters of the disk, the server stops before; else by the disk's error, after
    which it takes nothing until it is restarted."""
    with small_disk(tmp_path / "small") as enlarge:
        server = NatsServer(tmp_path / "nats", store=tmp_path / "small" / "data", max_store=limit)
        await server.start()
        connection = await Connection.open(server.url, CLUSTER, create=True)
        stored, error = await fill_up(connection.log)
        assert isinstance(error, LogUnavailable)
        if limit is None:
            assert isinstance(error, LogFull)
            assert "the NATS server has no room for more (insufficient resources)" in str(error)
        else:
            assert not isinstance(error, LogFull)
            assert "the NATS server answers and stores nothing: is its disk full" in str(error)
        assert await kept(connection.log) == stored
        enlarge()
        await server.restart()
        async with asyncio.timeout(20):
            while True:
                try:
                    again = await connection.log.append(ALICE, b"room", msg_id=f"id-{len(stored)}", timeout=2.0)
                    break
                except LogUnavailable:
                    await asyncio.sleep(0.1)
        assert (again.seq, again.duplicate) == (len(stored) + 1, False)
        assert await kept(connection.log) == stored | {f"id-{len(stored)}": again.seq}
        await connection.log.check()
        await connection.close()
        await server.stop()


async def test_a_stream_at_its_limit_refuses_new_records_and_continues_without_the_limit(
    nats_server: NatsServer,
) -> None:
    connection = await Connection.open(nats_server.url, "limited", create=True)
    owner = await nats.connect(nats_server.url)
    config = (await owner.jetstream().stream_info(log_stream("limited"))).config
    await owner.jetstream().update_stream(config.evolve(max_bytes=100_000))
    stored, error = await fill_up(connection.log, "dorm.limited.A.x", 1000)
    assert isinstance(error, LogFull)
    assert "has no room for more (maximum bytes exceeded)" in str(error)
    assert await kept(connection.log) == stored
    await owner.jetstream().update_stream(config)
    assert (await connection.log.append("dorm.limited.A.x", b"", msg_id=f"id-{len(stored)}")).seq == len(stored) + 1
    await owner.close()
    await connection.close()
