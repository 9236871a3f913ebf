"""The API and the dashboard of a cluster on this machine, as a process of their own: whatever it computes, master and agents
do not wait for it.

It ends with this process, however that ends: it reads from a pipe that this process holds.  One that ends by itself is started
again; without it the cluster goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING

import psutil
import structlog

from dorm.local.nats_server import free_port, in_use

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from pathlib import Path

HOST = "127.0.0.1"
NICE = 5
"""On a machine that is busy, master, agents and containers come first."""
_COMMAND = ("-c", "from dorm.cli.main import main; main()", "serve", "--while-stdin-is-open")
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_END_S = 5.0
_log = structlog.get_logger(__name__)


class ApiProcess:
    """`dorm serve` for a cluster that runs here."""

    def __init__(
        self, url: str, cluster: str, log: Path, port: int, *, credentials: Path | None = None, user: str = ""
    ) -> None:
        """`url` is that of the cluster's log, `log` the file of what the process says, `port` the one to listen on; if that
        is taken, or 0, it is any free one.  On a cluster with identities, `credentials` are the API's own, and `user` is
        whose requests it makes."""
        self._cluster = cluster
        self._log_file = log
        self._port = port if port and not in_use(HOST, port) else free_port(HOST)
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in ("DORM_CONTEXT", "DORM_CREDENTIALS")},
            # Not an argument: everyone on the machine sees those, and the address may hold a password.
            "DORM_URL": url,
            **({"DORM_CREDENTIALS": str(credentials), "DORM_USER": user} if credentials is not None else {}),
        }
        self._running: asyncio.Task[None] | None = None
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """Where it listens, or is about to."""
        return f"http://{HOST}:{self._port}"

    async def __aenter__(self) -> ApiProcess:
        self._running = asyncio.create_task(self._keep_running(), name="API")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _keep_running(self) -> None:
        pause = _PAUSE_S
        while True:
            began = asyncio.get_running_loop().time()
            try:
                code = await self._run()
            except OSError as error:
                _log.warning(f"the dashboard cannot be started: {error.strerror}")
                return
            if asyncio.get_running_loop().time() - began > _LONGEST_PAUSE_S:
                pause = _PAUSE_S
            _log.warning(
                f"the dashboard's process ended ({code}) and is started again", log=str(self._log_file), in_s=pause
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _run(self) -> int:
        where = ("--listen", f"{HOST}:{self._port}", "--cluster", self._cluster)
        with await asyncio.to_thread(self._log_file.open, "ab") as log:
            # A session of its own, so that Ctrl-C in the terminal reaches this process first.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *_COMMAND, *where, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True, env=self._environment,
            )  # fmt: skip
        with contextlib.suppress(psutil.Error):
            psutil.Process(self._process.pid).nice(NICE)
        return await self._process.wait()
