"""Commands of this program as separate processes, for work that no master or agent should wait for: the API and the dashboard
of a cluster on this machine, and users' views.

A companion ends with this process, even if that is killed, because it reads from a pipe that this process holds.  If it
ends by itself, it is restarted after a pause, which doubles while it keeps ending soon.  The cluster works without it.
The process of users' views starts once the log knows a plain user, so a cluster without any pays nothing.
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

from dorm.local.nats_server import free_port, in_use
from events.addresses import joined, loopback

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from dorm.core.state import State


# --- one process ------------------------------------------------------------------------------------------------------

NICE = 5
"""Niceness of companions: on a busy machine, masters, agents and containers come first."""
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


# --- the API ----------------------------------------------------------------------------------------------------------

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


# --- users' views -----------------------------------------------------------------------------------------------------

_VIEWS_LOOK_S = 0.5


def has_plain_users(state: State) -> bool:
    """Return whether any user may only read a view."""
    return state.known is not None and any(user.role == "user" for user in state.known.users.values())


class ViewsProcess(Companion):
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
        """`state` returns the master's present state, `credentials` are the master's, and `key` is what it signs with.  `log`
        is the file for the process's output; None for this one's standard error."""
        self._state = state
        # Not an argument: everyone on the machine sees those, and the address may hold a password.
        environment = {"DORM_URL": url, "DORM_CREDENTIALS": str(credentials)}
        arguments = ("views", "--cluster", cluster, "--key", str(key))
        super().__init__("the process of users' views", arguments, environment, log)

    async def wanted(self) -> None:
        """Wait for a plain user."""
        while not has_plain_users(self._state()):  # noqa: ASYNC110  (nothing reports that a field of a state changes)
            await asyncio.sleep(_VIEWS_LOOK_S)
