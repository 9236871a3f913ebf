"""The API and the dashboard of a cluster on this machine, as a separate process: master and agents never wait for it,
and the cluster works without it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dorm.local.companions.companion import Companion
from dorm.local.nats_server import free_port, in_use
from events.addresses import joined, loopback

if TYPE_CHECKING:
    from pathlib import Path

_LOOK_S = 0.1
_ANSWER_S = 5.0


class ApiProcess(Companion):
    """`dorm serve` for a cluster that runs here."""

    def __init__(
        self, url: str, cluster: str, log: Path, port: int, *, credentials: Path | None = None, user: str = ""
    ) -> None:
        """`url` is that of the cluster's log, `log` the file for the process's output, `port` the one to listen on; if that
        is taken, or 0, it is any free one.  On a cluster with identities, `credentials` are the API's own, and it makes
        requests on behalf of `user`."""
        self._host = loopback()
        self._port = port if port and not in_use(self._host, port) else free_port(self._host)
        # Not an argument: everyone on the machine sees those, and the address may hold a password.
        environment = {"DORM_URL": url}
        if credentials is not None:
            environment |= {"DORM_CREDENTIALS": str(credentials), "DORM_USER": user}
        where = ("--listen", joined(self._host, self._port), "--cluster", cluster)
        super().__init__("the dashboard's process", ("serve", *where), environment, log)

    async def answering(self) -> None:
        """Wait until it answers requests, whether or not it has read the log yet."""
        while not await self._answers():  # noqa: ASYNC110 - another process
            await asyncio.sleep(_LOOK_S)

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    where = joined(self._host, self._port)
                    writer.write(f"GET /v1/health HTTP/1.1\r\nHost: {where}\r\nConnection: close\r\n\r\n".encode())
                    return (await reader.readline()).startswith(b"HTTP/1.1 ")
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    @property
    def url(self) -> str:
        """Where it listens, or is about to."""
        return f"http://{joined(self._host, self._port)}"
