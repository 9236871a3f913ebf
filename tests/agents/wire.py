"""A connection to a real engine that a test can cut, or let lose what is sent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Wire:
    """Passes bytes between its own socket and an engine's, as long as it is intact."""

    def __init__(self, path: Path, engine: str) -> None:
        self.url = f"unix://{path}"
        self._path = path
        self._engine = engine.removeprefix("unix://")
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.silent = False
        """Takes connections and requests, and answers nothing."""

    async def heal(self) -> None:
        """Whole again."""
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def cut(self) -> None:
        """End all connections, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._path.unlink(missing_ok=True)
        for end in list(self._ends):
            end.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._ends.add(writer)
        try:
            if self.silent:
                await reader.read(-1)
                return
            there, thence = await asyncio.open_unix_connection(self._engine)
            self._ends.add(thence)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass_on(reader, thence))
                both.create_task(_pass_on(there, writer))
            self._ends.discard(thence)
        finally:
            self._ends.discard(writer)
            writer.close()
            self._tasks.discard(task)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()


@contextlib.asynccontextmanager
async def wired(path: Path, engine: str) -> AsyncIterator[Wire]:
    """A whole wire, cut in the end."""
    wire = Wire(path, engine)
    await wire.heal()
    try:
        yield wire
    finally:
        await wire.cut()
