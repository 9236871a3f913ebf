"""One connection, to a program that a hostile user wrote."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from agents import sessions
from agents.runtime.interface import Key, Listener
from agents.sessions import Forwarded

if TYPE_CHECKING:
    import pytest

    from agents.runtime.interface import Runtime


class _Listens:
    async def listener(self, key: Key, port: int) -> Listener:
        return Listener("127.0.0.1", 1)


async def test_a_program_that_reads_nothing_blocks_no_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """One loop ends the sessions of all silent clients of a node: it must not wait for one user's program."""
    monkeypatch.setattr(sessions, "_CLOSE_S", 0.05)
    never = asyncio.Event()

    async def takes_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    async with await asyncio.start_server(takes_nothing, "127.0.0.1", 0, limit=1024) as server:
        port = server.sockets[0].getsockname()[1]
        forwarded = Forwarded(Key("app", 1, 0), port, cast("Runtime", _Listens()))
        await forwarded.open()
        assert forwarded._streams is not None
        forwarded._streams[1].write(bytes(64 << 20))
        reading = asyncio.create_task(anext(aiter(forwarded.read()), None))
        async with asyncio.timeout(60):
            await forwarded.close()
            assert await reading is None
        never.set()
