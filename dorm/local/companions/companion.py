"""A command of this program as a separate process, for work that this process should not wait for.

It ends with this process, even if that is killed, because it reads from a pipe that this process holds.  If it ends by itself,
it is restarted after a pause, which doubles while it keeps ending soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

import psutil
import structlog

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Self

NICE = 5
"""On a busy machine, masters, agents and containers come first."""
_PROGRAM = ("-c", "from dorm.cli.main import main; main()")
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_END_S = 5.0
_log = structlog.get_logger(__name__)


class Companion:
    """Runs the command while it is entered."""

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], log_file: Path | None = None
    ) -> None:
        """`name` describes it ("the dashboard"); `environment` is added to this process's own, without the context of its
        user; `log_file` receives its output, by default this process's standard error."""
        self._name = name
        self._arguments = (*arguments, "--while-stdin-is-open")
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("DORM_CONTEXT", "DORM_CREDENTIALS")
        }
        self._environment = {**inherited, **environment}
        self._log_file = log_file
        self._running: asyncio.Task[None] | None = None
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._keep_running(), name=self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                await process.wait()

    async def wanted(self) -> None:
        """Return once the process should run: at once, unless a companion waits for something."""

    async def _keep_running(self) -> None:
        await self.wanted()
        pause = _PAUSE_S
        while True:
            began = asyncio.get_running_loop().time()
            try:
                code = await self._run()
            except OSError as error:
                _log.warning(f"{self._name} cannot be started: {error.strerror}")
                return
            if asyncio.get_running_loop().time() - began > _LONGEST_PAUSE_S:
                pause = _PAUSE_S
            where = {} if self._log_file is None else {"log": str(self._log_file)}
            _log.warning(f"{self._name} ended ({code}) and is started again", in_s=pause, **where)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _run(self) -> int:
        with contextlib.ExitStack() as stack:
            log = None
            if self._log_file is not None:
                log = stack.enter_context(await asyncio.to_thread(self._log_file.open, "ab"))
            # A session of its own, so that Ctrl-C in the terminal reaches this process first.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *_PROGRAM, *self._arguments, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True, env=self._environment,
            )  # fmt: skip
        with contextlib.suppress(psutil.Error):
            psutil.Process(self._process.pid).nice(NICE)
        return await self._process.wait()
