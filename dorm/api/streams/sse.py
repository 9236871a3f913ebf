"""One stream of server-sent events.

While a reader catches up, it is written to in its own time.  Afterwards it is one of many that get the same bytes, which are
handed to its connection without waiting; how much may wait there is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from aiohttp import HttpVersion11, web

from dorm.api.errors import NotAcceptable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.api.options import Limits

CONTENT_TYPE = "text/event-stream"
HEARTBEAT = b": still here\n\n"
_RETRY_MS = 1000
_TURN = 16
"""Streams that are written to at once.  A write takes the system some ten microseconds, so a thousand of them would hold a
processor for longer than a master's round takes: Linux lets a task finish its slice, whatever else wakes up."""


def frame(id: str, event: str, data: bytes) -> bytes:
    """Return one event.  `data` is JSON of one line."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {event}\ndata: ".encode() + data + b"\n\n"


def last_event_id(request: web.Request) -> str | None:
    """Return where the reader wants to resume."""
    return request.headers.get("Last-Event-ID") or None


def wanted(request: web.Request) -> bool:
    """Return whether the client asks for a stream."""
    return CONTENT_TYPE in request.headers.get("Accept", "")


class Stream:
    """An open stream."""

    def __init__(self, request: web.Request, limits: Limits) -> None:
        self._request = request
        self._limits = limits
        self._response = web.StreamResponse(
            headers={
                "Content-Type": f"{CONTENT_TYPE}; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        self._over = asyncio.Event()
        self._stuck_since: float | None = None
        self._waiting = 0

    async def open(self, headers: dict[str, str]) -> web.StreamResponse:
        """Send the head.  Raises NotAcceptable for a client of HTTP/1.0, ConnectionError for one that has gone."""
        if self._request.version < HttpVersion11:
            raise NotAcceptable("streams need HTTP/1.1", code="api.stream.http_version")
        self._response.enable_chunked_encoding()
        self._response.headers.update(headers)
        await self._response.prepare(self._request)
        await self.write([f"retry: {_RETRY_MS}\n\n".encode()])
        return self._response

    async def write(self, frames: Iterable[bytes]) -> None:
        """Write in the reader's own time.  Raises ConnectionError for one that has gone or takes nothing."""
        try:
            async with asyncio.timeout(self._limits.write_s):
                await self._response.write(b"".join(frames))
        except TimeoutError:
            self.end()
            raise ConnectionResetError("the reader takes nothing") from None

    def push(self, chunk: bytes) -> bool:
        """Hand on a chunk (see `chunked`) without waiting; return whether the stream continues.  A reader that has taken what
        came before gets it, however large it is."""
        transport = self._request.transport
        if self._over.is_set() or transport is None or transport.is_closing():
            self._over.set()
            return False
        if transport.get_write_buffer_size() > self._limits.waiting:
            self.end()
            return False
        transport.write(chunk)
        return True

    def check(self, now: float) -> bool:
        """Return whether the reader receives the output; called regularly."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            self._over.set()
            return False
        waiting = transport.get_write_buffer_size()
        if not waiting or waiting < self._waiting:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > self._limits.write_s:
            self.end()
            return False
        self._waiting = waiting
        return not self._over.is_set()

    def end(self) -> None:
        """End it at once, with what waits for its reader."""
        self._over.set()
        if self._request.transport is not None:
            self._request.transport.abort()

    def finish(self) -> None:
        """End it gracefully: the reader resumes elsewhere, or later."""
        self._over.set()

    async def over(self) -> None:
        """Wait until it has ended."""
        await self._over.wait()

    async def close(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._response.write_eof()


def chunked(body: bytes) -> bytes:
    """Return bytes as one chunk of HTTP/1.1, for all streams alike."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class Readers:
    """Streams that get the same bytes from here on."""

    def __init__(self) -> None:
        self._streams: dict[Stream, None] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Stream) -> None:
        self._streams[stream] = None

    def drop(self, stream: Stream) -> None:
        self._streams.pop(stream, None)

    def push(self, body: bytes) -> None:
        """Hand on to all, and give way now and then to what waits for this processor."""
        chunk, over = chunked(body), list[Stream]()
        for number, stream in enumerate(self._streams, 1):
            if not stream.push(chunk):
                over.append(stream)
            if not number % _TURN:
                os.sched_yield()
        for stream in over:
            self.drop(stream)

    def check(self, now: float) -> None:
        for stream in [one for one in self._streams if not one.check(now)]:
            self.drop(stream)

    def finish(self) -> None:
        for stream in self._streams:
            stream.finish()
        self._streams.clear()
