"""The socket of a service manager, as systemd gives one to a unit of `Type=notify`."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Manager:
    """What a process says to it."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def said(self, line: str) -> str:
        """All that was said up to this line."""
        found = ""
        async with asyncio.timeout(20):
            while line not in found.splitlines():
                found += (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode() + "\n"
        return found
