"""The views of users, as a process beside a master: what it folds and hides never keeps a master waiting.

It starts once the log knows a plain user, so a cluster without any pays nothing.  It ends with this process, however that
ends, and is started again when it ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING

import psutil
import structlog

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable
    from pathlib import Path

    from dorm.core.state import State

NICE = 5
"""On a machine that is busy, masters, agents and containers come first."""
_COMMAND = ("-c", "from dorm.cli.main import main; main()", "views", "--while-stdin-is-open")
_LOOK_S = 0.5
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_END_S = 5.0
_log = structlog.get_logger(__name__)


def has_plain_users(state: State) -> bool:
    """Return whether somebody may read no more than a view."""
    return state.known is not None and any(user.role == "user" for user in state.known.users.values())


class ViewsProcess:
    """`dorm views` for a cluster whose master runs here."""

    def __init__(
        self,
        state: Callable[[], State],
        url: str,
        cluster: str,
        *,
        credentials: Path | str,
        key: Path,
        log: Path | None = None,
    ) -> None:
        """`state` returns the master's present state, `credentials` are the master's, and `key` is what it signs with.
        `log` is the file of what the process says; None for this one's standard error."""
        self._state = state
        self._arguments = ("--cluster", cluster, "--key", str(key))
        self._log_file = log
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "DORM_CONTEXT"},
            # Not an argument: everyone on the machine sees those, and the address may hold a password.
            "DORM_URL": url,
            "DORM_CREDENTIALS": str(credentials),
        }
        self._running: asyncio.Task[None] | None = None
        self._process: Process | None = None

    async def __aenter__(self) -> ViewsProcess:
        self._running = asyncio.create_task(self._keep_running(), name="views")
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
        while not has_plain_users(self._state()):  # noqa: ASYNC110  (nothing reports that a field of a state changes)
            await asyncio.sleep(_LOOK_S)
        pause = _PAUSE_S
        while True:
            began = asyncio.get_running_loop().time()
            try:
                code = await self._run()
            except OSError as error:
                _log.warning(f"the views of users cannot be served: {error.strerror}")
                return
            if asyncio.get_running_loop().time() - began > _LONGEST_PAUSE_S:
                pause = _PAUSE_S
            _log.warning("the process of users' views ended and is started again", code=code, in_s=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _run(self) -> int:
        with contextlib.ExitStack() as stack:
            log = None
            if self._log_file is not None:
                log = stack.enter_context(await asyncio.to_thread(self._log_file.open, "ab"))
            # A session of its own, so that Ctrl-C in the terminal reaches this process first.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *_COMMAND, *self._arguments, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True, env=self._environment,
            )  # fmt: skip
        with contextlib.suppress(psutil.Error):
            psutil.Process(self._process.pid).nice(NICE)
        return await self._process.wait()
