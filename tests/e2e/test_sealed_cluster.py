"""A cluster on a real server with a real master: sealed, exported, and then tampered with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.client.client import Client
from events.archive.segments import open_archive
from events.codec import decode
from events.kinds import LogSealed, Round
from events.nats.connection import Connection
from replay.audit.audit import verify
from replay.audit.seal_checks import verify_seals
from replay.export.export import export
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from events.log.interface import ReadableLog
    from events.log.records import Record
    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats]
CLUSTER = "sealed-e2e"
PATIENCE_S = 60.0


@contextlib.asynccontextmanager
async def master(url: str, home: Path, *, kill: bool = False) -> AsyncIterator[None]:
    """`dorm master` in a separate process, ended gracefully or by kill -9."""
    words = [sys.executable, "-c", "from dorm.cli.main import main; main()", "master", "--url", url]
    process = await asyncio.create_subprocess_exec(
        *words, "--cluster", CLUSTER, env={**os.environ, "DORM_HOME": str(home)}, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill() if kill else process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()


async def records_of(log: ReadableLog) -> list[Record]:
    return [record async for batch in log.read() for record in batch]


async def test_a_cluster_is_sealed_by_each_master_and_any_change_shows(nats_server: NatsServer, tmp_path: Path) -> None:
    home = tmp_path / "home"
    connection = await Connection.open(nats_server.url, CLUSTER, create=True)
    client = Client(connection.log, connection.bus, CLUSTER, user="ann")
    try:
        async with master(nats_server.url, home, kill=True):
            await client.seal(answer_timeout=PATIENCE_S)
            await client.submit({"name": "one", "command": ["true"], "demand": {"cpu": 1}}, answer_timeout=PATIENCE_S)
        async with master(nats_server.url, home):
            await client.submit({"name": "two", "command": ["true"], "demand": {"cpu": 1}}, answer_timeout=PATIENCE_S)
        key = home / CLUSTER / "master.nk"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        report = await verify(connection.log)
        assert report.good
        assert (len(report.seals.keys), report.seals.unsealed) == (1, 1), "the second master sealed all when it stopped"
        await export(connection.log, tmp_path / "log.dorm")
    finally:
        await connection.close()
    archive = await open_archive(tmp_path / "log.dorm")
    records = await records_of(archive)
    await archive.close()
    public = report.seals.keys[0].key
    assert (await verify_seals(log_of(records), keys=[public])).good
    for seq in range(1, report.seals.sealed_upto + 1):
        other = list(records)
        other[seq - 1] = msgspec.structs.replace(records[seq - 1], time=records[seq - 1].time + 1)
        changed = await verify_seals(log_of(other), keys=[public])
        assert changed.damage is not None
        assert changed.damage.first <= seq <= changed.damage.last
    sealed = [
        event for event in map(decode, records) if isinstance(event, Round) and isinstance(event.events[0], LogSealed)
    ]
    assert len(sealed) == report.seals.seals >= 2
    assert key.read_text().strip() not in str(records)
