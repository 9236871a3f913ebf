"""A real NATS server, which tests may kill and start again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_READY_S = 20.0
_POLL_S = 0.01


class NatsServerFailed(Exception):
    """The server ended, or is not ready in time; the message has the end of its log."""


class NatsServer:
    """One server with JetStream; its data and log lie in `home`, and it is at the same URL after each start.

    `enter` may turn its command line into one that runs it elsewhere, such as `Namespace.enter`; `host` is then an address
    there.  With port -1 the server finds a free one, which it keeps.
    """

    def __init__(
        self,
        home: Path,
        *,
        host: str = "127.0.0.1",
        port: int = -1,
        enter: Callable[[Iterable[str]], list[str]] = list,
    ) -> None:
        self.home = home
        self._host = host
        self._port = port
        self._enter = enter
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect; known once it has started."""
        assert self._port > 0
        return f"nats://{self._host}:{self._port}"

    async def start(self) -> None:
        """Starts it on the data it has, and returns when it is ready.  Raises `NatsServerFailed`.

        To be called from a thread that outlives the server, as the main one does."""
        self._spawn()
        try:
            async with asyncio.timeout(_READY_S):
                while (ports := self._ports()) is None:
                    assert self._process is not None
                    if self._process.poll() is not None:
                        raise NatsServerFailed(f"nats-server ended: {self._last_words()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            await self.kill()
            raise NatsServerFailed(f"nats-server is not ready: {self._last_words()}") from None
        except BaseException:
            await self.kill()
            raise
        self._port = urlsplit(ports["nats"][0]).port or self._port

    async def stop(self) -> None:
        """Asks it to end, and returns when it has."""
        await self._end(subprocess.Popen.terminate)

    async def kill(self) -> None:
        """`kill -9`; what it had acknowledged is on the disk."""
        await self._end(subprocess.Popen.kill)

    async def restart(self) -> None:
        """`kill -9` and a start."""
        await self.kill()
        await self.start()

    async def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        if self._process is None:
            return
        how(self._process)
        # A wait in a thread ends even if we are cancelled, since the server surely does.
        await asyncio.to_thread(self._process.wait)
        self._process = None

    def _spawn(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        for stale in self.home.glob("*.ports"):
            stale.unlink()
        config = {
            "host": self._host,
            "port": self._port,
            "max_payload": 8 << 20,
            "ports_file_dir": str(self.home),  # the server writes a file there when it is ready
            "jetstream": {"store_dir": str(self.home / "data"), "sync_interval": "always"},
        }
        (self.home / "server.conf").write_text(json.dumps(config))
        server = [str(Path(sys.executable).with_name("nats-server")), "--config", str(self.home / "server.conf")]
        if shutil.which("setpriv"):
            server = ["setpriv", "--pdeathsig", "KILL", *server]  # it does not outlive a test process that is killed
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._enter(server), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _ports(self) -> dict[str, Any] | None:
        for path in self.home.glob("*.ports"):
            with contextlib.suppress(ValueError):  # half written
                ports: dict[str, Any] = json.loads(path.read_text())
                return ports
        return None

    def _last_words(self) -> str:
        return " | ".join((self.home / "log").read_text(errors="replace").splitlines()[-3:])
