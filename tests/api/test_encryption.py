"""The API's certificate is renewed on disk while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from dorm.api.connections import Encryption
from dorm.api.errors import CannotListen
from dorm.api.options import Options
from dorm.security.certificates import new_authority, server_certificate
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Files:
    """A certificate and its key, which are renewed."""

    def __init__(self, folder: Path) -> None:
        self.authority = new_authority("lab", time.time_ns())
        self.certificate, self.key = folder / "cert.pem", folder / "key.pem"
        self.renew(*self.made())

    def made(self) -> tuple[bytes, bytes]:
        return server_certificate(*self.authority, ["127.0.0.1"], time.time_ns())

    def renew(self, certificate: bytes | None, key: bytes | None) -> int:
        if certificate is not None:
            self.certificate.write_bytes(certificate)
        if key is not None:
            self.key.write_bytes(key)
        return x509.load_pem_x509_certificate(self.certificate.read_bytes()).serial_number

    def encryption(self) -> Encryption:
        made = Encryption.of(Options(certificate=self.certificate, key=self.key))
        assert made is not None
        return made


@contextlib.asynccontextmanager
async def listening(encryption: Encryption) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=encryption)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def connect(port: int) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the serial number that the server shows, and the connection."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(raw).serial_number, reader, writer


async def serial(port: int) -> int:
    shown, _, writer = await connect(port)
    writer.close()
    return shown


async def test_new_connections_see_a_renewed_certificate_and_old_ones_live_on(tmp_path: Path) -> None:
    files = Files(tmp_path)
    encryption = files.encryption()
    async with listening(encryption) as port:
        first, reader, writer = await connect(port)
        assert not encryption.renew(), "nothing has changed"
        second = files.renew(*files.made())
        hurry = asyncio.Event()
        following = asyncio.create_task(encryption.follow(hurry))
        hurry.set()
        async with asyncio.timeout(20.0):
            while (shown := await serial(port)) == first:
                pass
        assert shown == second
        following.cancel()
        await asyncio.wait([following])
        writer.write(b"still here\n")
        assert await reader.read() == b"still here\n"
        writer.close()


async def test_half_of_a_renewed_pair_changes_nothing_and_is_reported_once(tmp_path: Path) -> None:
    files = Files(tmp_path)
    encryption = files.encryption()
    certificate, key = files.made()
    async with listening(encryption) as port:
        first = await serial(port)
        with capture_logs() as said:
            files.renew(certificate, None)
            assert not encryption.renew()
            assert not encryption.renew()
            assert await serial(port) == first
            assert len(said) == 1, said
            files.certificate.unlink()
            assert not encryption.renew()
            assert await serial(port) == first
            second = files.renew(certificate, key)
            assert encryption.renew()
            assert await serial(port) == second


def test_files_that_never_matched_are_refused_at_the_start(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.renew(None, files.made()[1])
    with raises(CannotListen, "api.certificate.unusable"):
        files.encryption()
    assert Encryption.of(Options()) is None


@pytest.mark.parametrize("backwards", [False, True])
def test_only_a_difference_counts_whichever_way_the_clock_was_set(tmp_path: Path, backwards: bool) -> None:
    import os

    files = Files(tmp_path)
    encryption = files.encryption()
    files.renew(*files.made())
    years = -5 if backwards else 10
    for file in (files.certificate, files.key):
        os.utime(file, (time.time() + years * 3e7,) * 2)
    assert encryption.renew()
