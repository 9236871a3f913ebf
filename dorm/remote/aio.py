"""The client to be awaited: as `dorm.remote.client`, with `await` and `async for`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import TYPE_CHECKING, Any, TypeVar

from dorm.remote import asks, wire
from dorm.remote.answers import App, Event, Node, Stored, Submitted
from dorm.remote.errors import Problem, Unreachable, problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

T = TypeVar("T")
_FAILED = (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError)


class AsyncClient:
    """One user's view of one cluster, through its HTTP API."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        timeout: float = wire.TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`url`: of `dorm serve`.  Raises RemoteError for one that is none."""
        self._server = wire.server_of(url)
        self._user = user
        self._timeout = timeout
        self._tls = tls

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def submit(self, spec: Mapping[str, Any] | str, *, key: str | None = None) -> Submitted:
        """Submit a spec, a document or YAML.  A repeat with the same `key` is the same app.  Raises Refused, Unsettled."""
        return await self._do(asks.submit(spec, key))

    async def app(self, name_or_id: str, *, at: str | None = None, min_seq: str | None = None) -> App:
        """Return an app, now or at a moment.  Raises NotFound."""
        return await self._do(asks.app(name_or_id, at, min_seq))

    async def apps(self, *, ended: bool = False, at: str | None = None) -> AsyncIterator[App]:
        """Yield apps by submission."""
        after: str | None = "0"
        while after is not None:
            found, after = await self._do(asks.apps(after, ended, at))
            for one in found:
                yield one

    async def nodes(self, *, at: str | None = None) -> AsyncIterator[Node]:
        """Yield nodes by name."""
        after: str | None = ""
        while after is not None:
            found, after = await self._do(asks.nodes(after, at))
            for one in found:
                yield one

    async def update(
        self, app: str, *, weight: float | None = None, n_min: int | None = None, n_max: int | None = None
    ) -> Stored:
        """Change weight or bounds.  Raises NotFound, Refused."""
        return await self._do(asks.update(app, {"weight": weight, "n_min": n_min, "n_max": n_max}))

    async def cancel(self, app: str, reason: str = "") -> Stored:
        """Request the app's end.  Raises NotFound, Refused."""
        return await self._do(asks.cancel(app, reason))

    async def drain(self, node: str, *, on: bool = True, reason: str = "") -> Stored:
        """Empty a node, or use it again.  Raises NotFound."""
        return await self._do(asks.drain(node, on, reason))

    async def plan(self, **assumed: Any) -> dict[str, Any]:
        """Return what the next decision would be, if something happened first (`submit`, `cancel`, `drain`, `policy`)."""
        return await self._do(asks.plan(assumed))

    async def get(self, path: str, **query: Any) -> Any:
        """Return anything that can be read: `get("apps/digits/story")`, `get("state", at="-10m")`."""
        return await self._do(asks.get(path, query))

    async def wait(self, app: str, *, min_seq: str | None = None) -> App:
        """Wait until the app has ended, and return it.  Raises NotFound."""
        found = await self.app(app, min_seq=min_seq)
        if found.ended:
            return found
        position = str(found.document.get("position", "0"))
        kinds = ["AppCompleted", "AppFailed", "AppCancelled"]
        async for event in self.events(after=position, app=[found.id], kind=kinds):
            found = await self.app(found.id, min_seq=event.position.partition(".")[0])
            if found.ended:
                return found
        raise AssertionError("a stream that is resumed does not end")

    async def logs(self, app: str, *, slot: int | None = None, tail: int | None = None) -> AsyncIterator[bytes]:
        """Yield what a container has written so far.  Raises NotFound, Refused."""
        async with self._open(asks.logs(app, slot, tail)) as (_, pieces):
            async for piece in pieces:
                yield piece

    # --- following ------------------------------------------------------------------------------------------------------

    async def events(
        self,
        *,
        after: str | None = None,
        app: Sequence[str] = (),
        node: Sequence[str] = (),
        user: Sequence[str] = (),
        kind: Sequence[str] = (),
    ) -> AsyncIterator[Event]:
        """Yield each event once and in order, from a position or from now on, without end, through outages.  Raises Problem
        where the request itself is refused."""
        filters = {"app": app, "node": node, "user": user, "kind": kind}
        failures = 0
        while True:
            try:
                async with self._open(asks.events(after, filters)) as (head, pieces):
                    after = after or head.headers.get("dorm-position")
                    frames = wire.Frames()
                    async for piece in pieces:
                        for id, event, data in frames.feed(piece):
                            if event == "event":
                                failures = 0
                                yield Event.of(json.loads(data))
                                after = id
            except Problem as error:
                if error.status not in (429, 503):
                    raise
            except _FAILED:
                pass
            failures += 1
            await asyncio.sleep(min(wire.PAUSE_S * failures, 10.0))

    # --- sending --------------------------------------------------------------------------------------------------------

    async def _do(self, ask: asks.Ask[T]) -> T:
        for left in range(wire.TRIES - 1, -1, -1):
            try:
                async with self._open(ask, checked=False) as (head, pieces):
                    body = b"".join([piece async for piece in pieces])
            except _FAILED as error:
                if not left or not ask.repeatable:
                    raise Unreachable(f"no server answers at {self._server.name} ({error})") from None
            else:
                document = wire.settled(head.status, body, left, ask.repeatable)
                if document is not wire.AGAIN:
                    return ask.read(document)
            await asyncio.sleep(wire.PAUSE_S)
        raise AssertionError("the last try returns or raises")

    @contextlib.asynccontextmanager
    async def _open(
        self, ask: asks.Ask[Any], *, checked: bool = True
    ) -> AsyncIterator[tuple[wire.Head, AsyncIterator[bytes]]]:
        """Send over a connection of its own, and yield the answer's head and the pieces of its body.  Raises Problem, unless
        the caller looks at the status itself."""
        server = self._server
        tls = (self._tls or ssl.create_default_context()) if server.tls else None
        opening = asyncio.open_connection(server.host, server.port, ssl=tls)
        reader, writer = await asyncio.wait_for(opening, self._timeout)
        try:
            headers = {
                "Host": server.name,
                "Connection": "close",
                "Content-Length": str(len(ask.body)),
                **wire.headers_of(ask.headers, self._user),
            }
            lines = [
                f"{ask.method} {server.prefix}{ask.path} HTTP/1.1",
                *(f"{name}: {headers[name]}" for name in headers),
            ]
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + ask.body)
            await writer.drain()
            raw = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._timeout)
            head = wire.head_of(raw[:-4])
            pieces = _pieces(reader, head, self._timeout)
            if checked and head.status >= 400:
                body = b"".join([piece async for piece in pieces])
                raise problem(head.status, json.loads(body) if body else {})
            yield head, pieces
        finally:
            writer.close()


async def _pieces(reader: asyncio.StreamReader, head: wire.Head, timeout: float) -> AsyncIterator[bytes]:
    """Yield the body.  Raises EOFError where it ends early, TimeoutError for one that is silent."""
    if head.headers.get("transfer-encoding", "").lower() != "chunked":
        left = int(head.headers.get("content-length", "0"))
        if left:
            yield await asyncio.wait_for(reader.readexactly(left), timeout)
        return
    while True:
        size = int((await asyncio.wait_for(reader.readuntil(b"\r\n"), wire.SILENCE_S)).split(b";")[0], 16)
        chunk = await asyncio.wait_for(reader.readexactly(size + 2), timeout)
        if not size:
            return
        yield chunk[:-2]
