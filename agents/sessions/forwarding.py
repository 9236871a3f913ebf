"""One connection to a port of a container, from the node's own network, which its containers share.

A port says nothing about whose it is, so the connection is made only to a socket that a process of this container holds, and
only kept if it still does after that.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from agents.runtime.interface import RuntimeFault
from events.log.interface import AskRefused
from events.sessions import CHUNK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agents.runtime.interface import Key, Runtime
    from events.sessions import Input

_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 2.0
"""How long, in seconds, the last output may take to be read."""


class NotListening(RuntimeFault):
    """No process of the container listens on the port."""

    code = "session.port.not_listening"


class Forwarded:
    """One connection."""

    def __init__(self, key: Key, port: int, runtime: Runtime) -> None:
        self._key = key
        self._port = port
        self._runtime = runtime
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._taken = 0
        self._taking = False
        self.received = self.sent = 0
        """Bytes into the container, and out of it."""

    async def read(self) -> AsyncIterator[bytes]:
        """Yield incoming data, once it is open."""
        assert self._streams is not None
        with contextlib.suppress(OSError):  # Reset by the peer: as good as an end.
            while data := await self._streams[0].read(CHUNK):
                self.sent += len(data)
                yield data

    async def open(self) -> None:
        """Connect.  Raises KeyError if the container does not run, NotListening."""
        before = await self._runtime.listener(self._key, self._port)
        if before is None:
            raise NotListening(f"no process of the container listens on port {self._port}")
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(before.address, self._port, limit=CHUNK)
        except (OSError, TimeoutError) as error:
            raise NotListening(
                f"port {self._port} of the container does not take connections: {str(error) or 'no answer'}",
                code="session.port.refused",
            ) from error
        if await self._runtime.listener(self._key, self._port) != before:
            writer.close()
            raise NotListening(f"the process that listened on port {self._port} has just ended")
        self._streams = reader, writer

    async def take(self, asked: Input) -> None:
        """Send bytes over it; return once the system has taken them."""
        if self._streams is None or self._taking or asked.number != self._taken + 1:
            raise AskRefused("an earlier part of the input is missing", code="session.input.out_of_order")
        self._taking, self._taken = True, asked.number
        writer = self._streams[1]
        try:
            with contextlib.suppress(OSError):
                if asked.data:
                    writer.write(asked.data)
                    await writer.drain()
                    self.received += len(asked.data)
                if asked.last and writer.can_write_eof():
                    writer.write_eof()
        finally:
            self._taking = False

    async def close(self) -> None:
        """Close it.  A program that reads nothing holds up neither the connection nor those who wait for its end."""
        if self._streams is not None:
            self._streams[1].close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._streams[1].wait_closed()
            self._streams[1].transport.abort()
