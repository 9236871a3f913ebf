"""Connections that have to be encrypted are encrypted, also with a hostile machine between."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from cryptography import x509

from dorm.local.founding import make_keys
from dorm.local.nats_server import EmbeddedServer
from dorm.security.folder import KeyFolder
from events.log.records import LogError, LogRefused
from events.nats.access import Credentials
from events.nats.link import Link
from tests.errors import raises
from tests.lab.machines.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.nats


@pytest_asyncio.fixture
async def root(tmp_path: Path) -> AsyncIterator[Credentials]:
    """The admin of a cluster whose server runs with TLS."""
    port, keys = free_port(), KeyFolder(tmp_path / "security")
    made = make_keys(keys, "lab", f"tls://127.0.0.1:{port}", "root", ("127.0.0.1",), time.time_ns())
    server = EmbeddedServer(tmp_path, port=port, more=keys.server_settings())
    await server.start()
    yield made
    await server.stop()


async def test_a_server_is_believed_only_with_a_certificate_of_the_clusters_authority(
    root: Credentials, tmp_path: Path
) -> None:
    link = await Link.open(root.url, name="test", timeout=5.0, credentials=root)
    await link.close()
    other = make_keys(KeyFolder(tmp_path / "other"), "lab", root.url, "root", ("127.0.0.1",), time.time_ns())
    stranger = Credentials("lab", root.url, "root", "admin", root.seed, other.ca)
    with raises(LogRefused, "log.server_not_trusted"):
        await Link.open(root.url, name="test", timeout=5.0, credentials=stranger)


async def test_a_machine_that_strips_the_encryption_learns_nothing(root: Credentials) -> None:
    """A machine between client and server changes the greeting, which is not encrypted yet, so that it asks for no TLS."""
    sent: list[bytes] = []
    greeting = {"server_id": "x", "version": "2.15.1", "max_payload": 1048576, "nonce": "abc", "auth_required": True}

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(greeting).encode() + b"\r\n")
        sent.append(await reader.read(65536))
        writer.close()

    server = await asyncio.start_server(between, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        for scheme in ("tls", "nats"):
            with raises(LogRefused, "log.server_not_trusted"):
                await Link.open(f"{scheme}://127.0.0.1:{port}", name="test", timeout=5.0, credentials=root)
        with raises(LogRefused, "log.server_not_trusted"):
            await Link.open(f"ws://127.0.0.1:{port}", name="test", timeout=5.0, credentials=root)
        # The control: without encryption demanded, the client signs and sends.
        plain = Credentials("lab", root.url, "root", "admin", root.seed)
        with pytest.raises(LogError):
            await Link.open(f"nats://127.0.0.1:{port}", name="test", timeout=1.0, credentials=plain)
    assert [b"CONNECT" in one for one in sent] == [False, False, True]


async def _serial(keys: Credentials) -> int:
    link = await Link.open(keys.url, name="test", timeout=5.0, credentials=keys)
    try:
        return x509.load_der_x509_certificate(link.certificate).serial_number
    finally:
        await link.close()


async def test_a_running_server_shows_a_renewed_certificate_and_not_half_of_one(
    root: Credentials, tmp_path: Path
) -> None:
    keys = KeyFolder(tmp_path / "security")
    first = await _serial(root)
    working = await Link.open(root.url, name="test", timeout=5.0, credentials=root)
    before = (tmp_path / "security" / "server.key").read_bytes()
    keys.make_certificates("lab", ("127.0.0.1",), time.time_ns())
    after = (tmp_path / "security" / "server.key").read_bytes()
    (tmp_path / "security" / "server.key").write_bytes(before)
    assert keys.reload()
    await _logged(tmp_path, "Failed to reload")
    assert await _serial(root) == first, "it keeps the pair that belongs together"
    (tmp_path / "security" / "server.key").write_bytes(after)
    assert keys.reload()
    await _logged(tmp_path, "Reloaded server configuration")
    assert await _serial(root) not in (0, first)
    assert working.client.is_connected
    await working.close()


async def _logged(folder: Path, text: str) -> None:
    async with asyncio.timeout(20.0):
        while text not in (folder / "nats.log").read_text():  # noqa: ASYNC110  (no event reports it)
            await asyncio.sleep(0.02)
