"""What runs before its cluster is made waits for that; a command says so at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from dorm.deploy import layout
from dorm.deploy.installing import install
from dorm.deploy.keys import enable, keys_of, prepare
from dorm.deploy.rendering import rendered
from dorm.local.nats_server import find_binary
from dorm.security.folder import KeyFolder
from events.log.records import LogRefused, LogUnavailable
from events.nats import streams
from events.nats.access import read_credentials
from events.nats.connection import Connection
from tests.deploy.loopback import relocated
from tests.deploy.made import deployment
from tests.errors import raises
from tests.lab.machines.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from dorm.deploy.settings_file import Deployment

pytestmark = [pytest.mark.nats, pytest.mark.slow]


def alone() -> Deployment:
    """A cluster of one machine, which is this one."""
    ports = {name: free_port() for name in ("clients", "monitor")}
    return deployment(
        machines={"n1": "127.0.0.1"},
        servers=["n1"],
        masters=["n1"],
        api=[],
        nodes={},
        backup={},
        webhooks={},
        mount="none",
        ports=ports,
    )


@contextlib.asynccontextmanager
async def serving(settings: Deployment, keys: KeyFolder, root: Path) -> AsyncIterator[None]:
    """The NATS server with the files of its machine, as installed."""
    install(root, "n1", [*rendered(settings, "n1"), *keys_of(settings, "n1", keys)])
    file = root / layout.NATS_CONFIGURATION.lstrip("/")
    file.write_text(relocated(file.read_text(), root))
    with (root / "server.log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(find_binary(), "-c", str(file), stdout=log, stderr=log)
    try:
        yield
    finally:
        server.terminate()
        await server.wait()


async def test_a_master_waits_until_its_cluster_is_made(tmp_path: Path) -> None:
    settings, keys = alone(), KeyFolder(tmp_path / "security")
    prepare(settings, keys, "root", time.time_ns())
    async with serving(settings, keys, tmp_path):
        own = read_credentials(tmp_path / f"{layout.MASTER}/master.json".lstrip("/"))
        opening = asyncio.create_task(
            Connection.open(own.url, settings.cluster, create=True, patient=True, credentials=own)
        )
        try:
            async with asyncio.timeout(60):
                while True:
                    try:
                        with raises(LogRefused, "cluster.not_found", "dorm deploy found"):
                            await Connection.open(own.url, settings.cluster, create=True, credentials=own)
                        break
                    except LogUnavailable:
                        await asyncio.sleep(0.1)  # The server is about to start.
                await enable(settings, keys, clock=time.time_ns)
                connection = await opening
            assert await connection.log.end() > 0
            await connection.close()
        finally:
            opening.cancel()


async def test_a_master_waits_until_all_streams_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's is the first of them, and a master that saw it alone would end for want of the lease."""
    settings, keys = alone(), KeyFolder(tmp_path / "security")
    prepare(settings, keys, "root", time.time_ns())
    async with serving(settings, keys, tmp_path), asyncio.timeout(60):
        own = read_credentials(tmp_path / f"{layout.MASTER}/master.json".lstrip("/"))
        all_of_them = streams.stream_configs
        with monkeypatch.context() as made:
            made.setattr(streams, "stream_configs", lambda cluster: all_of_them(cluster)[:1])
            admin = await Connection.open(
                own.url, settings.cluster, create=True, patient=True, credentials=keys.credentials("root")
            )
            await admin.close()
        with raises(LogRefused, "cluster.not_found", "dorm deploy found"):
            await Connection.open(own.url, settings.cluster, credentials=own)
        opening = asyncio.create_task(Connection.open(own.url, settings.cluster, patient=True, credentials=own))
        await enable(settings, keys, clock=time.time_ns)
        connection = await opening
        assert await connection.leadership.replicas() == 1
        await connection.close()
