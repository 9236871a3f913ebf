"""The API on the log of a real NATS server, and a client that reads its answers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from dorm.api.options import Limits, Options
from dorm.api.serving import Server, serving
from dorm.master.master import Master
from events import subjects
from events.codec import encode
from events.kinds import NodeReported, PolicyChanged
from events.log.records import LogUnavailable
from events.nats.connection import Connection
from tests.core.records import joined
from tests.master.leading import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.kinds import Event
    from events.log.interface import Bus, EventLog
    from events.log.records import Record

PATIENCE_S = 20.0
JSON = {"Content-Type": "application/json"}


class Api:
    """A server, and who calls it."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session

    @property
    def follower(self) -> Any:
        return self.server.services.follower

    async def get(self, path: str, status: int = 200, headers: dict[str, str] | None = None) -> Any:
        """Return the document of an answer, which has this status."""
        async with self.session.get(path, headers=headers) as answer:
            return await _document(answer, status)

    async def send(
        self, method: str, path: str, body: Any = None, status: int = 202, headers: dict[str, str] | None = None
    ) -> Any:
        raw = msgspec.json.encode(body if body is not None else {})
        async with self.session.request(method, path, data=raw, headers={**JSON, **(headers or {})}) as answer:
            return await _document(answer, status)

    async def reach(self, seq: int) -> None:
        await self.follower.reach(seq, PATIENCE_S)


async def _document(answer: aiohttp.ClientResponse, status: int) -> Any:
    text = await answer.text()
    assert answer.status == status, f"{answer.status}: {text}"
    assert answer.headers["Dorm-Position"]
    if status >= 400:
        assert answer.content_type == "application/problem+json" or answer.url.path == "/v1/ready"
    document = msgspec.json.decode(text)
    if answer.content_type == "application/problem+json":
        assert document["status"] == status
        assert document["type"] == f"urn:dorm:problem:{document['code']}"
        assert document["detail"]
    return document


@contextlib.asynccontextmanager
async def served(connection: Connection, **limits: Any) -> AsyncIterator[Api]:
    """Serve a cluster's log, and wait until it is read."""
    options = Options(port=0, user="tester", limits=Limits(**limits))
    async with (
        serving(connection, options) as server,
        aiohttp.ClientSession(base_url=server.url, connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        following = asyncio.create_task(server.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not server.services.follower.ready:
                    assert not following.done(), following.exception()
                    await asyncio.sleep(0.01)
            yield Api(server, session)
        finally:
            following.cancel()
            await asyncio.wait({following})


@contextlib.asynccontextmanager
async def connected(url: str, cluster: str = "") -> AsyncIterator[Connection]:
    """A connection to a new cluster with a unique name."""
    connection = await Connection.open(url, cluster or f"api-{secrets.token_hex(4)}", create=True)
    try:
        yield connection
    finally:
        await connection.close()


async def filled(connection: Connection, records: list[Record]) -> None:
    """Append records of another cluster's log, also while its server restarts."""
    for record in records:
        parts = record.subject.split(".")
        parts[1] = connection.cluster
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await connection.log.append(".".join(parts), record.body, msg_id=f"filled-{record.seq}")
                    break
                except LogUnavailable:
                    await connection.connected()


async def say(log: EventLog, cluster: str, event: Event, who: str) -> int:
    return (await log.append(subjects.fact(cluster, type(event).__name__, who), encode(event))).seq


@contextlib.asynccontextmanager
async def led(connection: Connection, *nodes: str) -> AsyncIterator[Master]:
    """A master leads, and these nodes are heard."""
    log, cluster = connection.log, connection.cluster
    await say(log, cluster, PolicyChanged(quiet_ms=20, quiet_limit_ms=50), "operator")
    for node in nodes:
        await say(log, cluster, joined(node, abilities=["edits"]), node)
    beating = asyncio.create_task(_beat(connection.bus, cluster, nodes))
    try:
        master = Master(log, connection.bus, cluster, name="m", clock=time.time_ns, leadership=connection.leadership)
        async with running(master):
            yield master
    finally:
        beating.cancel()
        await asyncio.wait({beating})


async def _beat(bus: Bus, cluster: str, nodes: tuple[str, ...]) -> None:
    while True:
        for node in nodes:
            await bus.publish_report(subjects.report(cluster, node), encode(NodeReported(node=node)))
        await asyncio.sleep(1.0)


class Sse:
    """An open stream of server-sent events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self._buffer = b""
        self.beats = 0

    async def next(self) -> dict[str, str] | None:
        """Return the fields of the next event, None at the end."""
        while True:
            head, found, rest = self._buffer.partition(b"\n\n")
            if found:
                self._buffer = rest
                fields = dict(
                    line.split(": ", 1) for line in head.decode().split("\n") if line and not line.startswith(":")
                )
                self.beats += head.startswith(b":")
                if "event" in fields:
                    return fields
                continue
            try:
                piece = await self.answer.content.readany()
            except (aiohttp.ClientError, ConnectionError):
                return None
            if not piece:
                return None
            self._buffer += piece

    async def take(self, count: int, until: str = "") -> list[dict[str, str]]:
        """Return a number of events, or fewer if one has the id `until` or the stream ends."""
        found: list[dict[str, str]] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count and (one := await self.next()) is not None:
                found.append(one)
                if one.get("id") == until:
                    break
        return found


@contextlib.asynccontextmanager
async def streaming(api: Api, path: str, last: str | None = None, status: int = 200) -> AsyncIterator[Sse]:
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last is not None else {})}
    async with api.session.get(path, headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as answer:
        assert answer.status == status, await answer.text()
        assert answer.content_type == "text/event-stream"
        yield Sse(answer)
