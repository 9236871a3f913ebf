"""Bad input gets a problem document or a clean close, and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from yarl import URL

from dorm.core.state import digest
from replay.travel import state_at
from tests.api.served import JSON, PATIENCE_S, Api, connected, filled, served
from tests.replay.busy import busy_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats

RECORDS = busy_log(60, apps=4, nodes=2)


@contextlib.asynccontextmanager
async def unharmed(nats_server: NatsServer, **limits: Any) -> AsyncIterator[Api]:
    """An API that answers as before when the block is left, on a log to which nothing was added."""
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS)
        async with served(connection, **limits) as api:
            yield api
            assert await connection.log.end() == len(RECORDS)
            found = await api.get("/v1/state")
            assert found["digest"] == digest(await state_at(connection.log))


async def raw(api: Api, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Send bytes as they are, and return all that comes back until the server closes."""
    url = URL(api.server.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        got = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while piece := await reader.read(65536):
                    got += piece
        return got
    finally:
        writer.close()


GET = b"GET /v1/apps HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v1/apps HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/apps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        GET + b"X-Long: " + b"y" * 20_000 + b"\r\n\r\n",
        GET + b"".join(b"X-Many-%d: 1\r\n" % number for number in range(500)) + b"\r\n",
        GET + b"Connection: close\r\nHost: second\r\n\r\n",
    ],
    ids=["words", "tls", "version", "length", "chunks", "path", "header", "headers", "hosts"],
)
async def test_requests_that_are_not_http_are_answered_and_closed(nats_server: NatsServer, sent: bytes) -> None:
    async with unharmed(nats_server, idle_s=0.5) as api:
        got = await raw(api, sent)
        head, _, body = got.partition(b"\r\n\r\n")
        assert got == b"" or (b" 4" in head.split(b"\r\n")[0] and b"application/problem+json" in head), got
        assert got == b"" or body.startswith(b'{"type":"urn:dorm:problem:')


async def test_slow_clients_are_disconnected(nats_server: NatsServer) -> None:
    async with unharmed(nats_server, idle_s=0.5, body_s=0.5) as api:
        head = b"POST /v1/apps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        slow_head, slow_body, silent = await asyncio.gather(
            raw(api, *[bytes([one]) for one in GET], pause=0.05), raw(api, head, b'{"name":'), raw(api)
        )
        assert slow_head == silent == b""
        assert b"408 Request Timeout" in slow_body
        assert b"api.request.too_slow" in slow_body


async def test_a_head_that_stays_unfinished_ends_its_connection(nats_server: NatsServer) -> None:
    """As the documentation says: not after the time that an idle connection has, on a connection that was of use as well."""
    async with unharmed(nats_server, head_s=0.5) as api:
        for before in (b"", GET + b"\r\n"):
            reader, writer = await asyncio.open_connection(URL(api.server.url).host, URL(api.server.url).port)
            writer.write(before)
            dripping = asyncio.create_task(_drip(writer, GET + b"X-Slow: " + b"y" * 1000))
            got = b""
            async with asyncio.timeout(PATIENCE_S):
                with contextlib.suppress(ConnectionError):
                    while piece := await reader.read(65536):
                        got += piece
            assert not dripping.done() or dripping.result(), "it ends while bytes still come"
            dripping.cancel()
            writer.close()
            assert got.count(b"HTTP/1.1 200 ") == (1 if before else 0)


async def _drip(writer: asyncio.StreamWriter, text: bytes) -> bool:
    """Send a byte now and then; return whether the connection ended before all were sent."""
    try:
        for byte in text:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)
    except ConnectionError:
        return True
    return False


async def test_bodies_are_bounded(nats_server: NatsServer) -> None:
    async with unharmed(nats_server, body=10_000) as api:
        assert (await api.send("POST", "/v1/apps", {"name": "x" * 20_000}, 413))["code"] == "api.request.too_large"

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b" " * 4096

        with contextlib.suppress(OSError):
            async with api.session.post("/v1/apps", data=endless(), headers=JSON) as answer:
                assert answer.status == 413
        packed = {**JSON, "Content-Encoding": "gzip"}
        async with api.session.post("/v1/apps", data=b"\x1f\x8b", headers=packed) as answer:
            assert answer.status == 415
        for body in (b"{", b"[1", b'"', b"\xff\xfe", b"[" * 9000, b'{"a":' * 1600):
            async with api.session.post("/v1/apps", data=body, headers=JSON) as answer:
                assert answer.status == 400, body
        for wrong in (b"[]", b"1", b"null", b'"text"'):
            async with api.session.post("/v1/apps", data=wrong, headers=JSON) as answer:
                assert answer.status == 422, wrong


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../served.py",
        "/assets/%2e%2e/%2e%2e/etc/passwd",
        "/../../etc/passwd",
        "/assets//etc/passwd",
        "/assets/..%5c..%5cx",
    ],
)
async def test_no_path_leads_to_a_file(nats_server: NatsServer, path: str) -> None:
    async with unharmed(nats_server) as api:
        got = await raw(api, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert got.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
        assert b"root:" not in got


async def test_pages_of_other_origins_cannot_use_a_browser_against_the_api(nats_server: NatsServer) -> None:
    """DNS rebinding, foreign origins, and forms."""
    async with unharmed(nats_server) as api:
        assert (await api.get("/v1/apps", 421, {"Host": "evil.example"}))["code"] == "api.host.unknown"
        assert (await api.get("/v1/apps", 421, {"Host": "127.0.0.1.evil.example:80"}))["code"] == "api.host.unknown"
        for probe in ("/healthz", "/readyz", "/v1/health", "/v1/ready"):  # which call this machine by any name
            async with api.session.get(probe, headers={"Host": "lb-7.internal"}) as answer:
                assert answer.status == 200
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            assert (await api.send("POST", "/v1/nodes/gpu-01/drain", {}, 403, headers))["code"] == "api.origin.foreign"
        for simple in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            async with api.session.post(
                "/v1/nodes/gpu-01/drain", data=b"{}", headers={"Content-Type": simple}
            ) as answer:
                assert answer.status == 415
        async with api.session.options("/v1/apps", headers={"Origin": "http://evil.example"}) as answer:
            assert answer.status == 405
            assert not any(name.startswith("Access-Control") for name in answer.headers)
        answer_to = await api.session.get("/v1/apps", headers={"Host": "localhost:1"})
        assert answer_to.status == 200


async def test_connections_of_one_address_are_bounded(nats_server: NatsServer) -> None:
    async with unharmed(nats_server, connections_per_address=20) as api:
        url = URL(api.server.url)
        await api.get("/v1/health")
        idle = [await asyncio.open_connection(url.host, url.port) for _ in range(19)]
        got = await raw(api, GET + b"\r\n")
        assert b"429 Too Many Requests" in got
        assert b"api.connections.too_many" in got
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()


async def test_a_thousand_idle_streams_do_not_block_other_requests(nats_server: NatsServer) -> None:
    async with unharmed(nats_server) as api:
        url = URL(api.server.url)
        request = b"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"

        async def idle() -> asyncio.StreamWriter:
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(request)
            await reader.readuntil(b"retry:")
            return writer

        streams = await asyncio.gather(*(idle() for _ in range(1000)))
        assert (await api.get("/v1/health"))["streams"] == 1000
        assert len((await api.get("/v1/apps"))["items"]) <= 100
        for writer in streams:
            writer.transport.abort()
