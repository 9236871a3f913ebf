"""A log's server, a master and an API, each in its own process, as on different machines."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
import psutil

from dorm.bench import BenchError
from dorm.local.companions import NICE
from dorm.local.nats_server import EmbeddedServer, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.nats.connection import Connection

HOST = "127.0.0.1"
CLUSTER = "bench"
_DORM = (sys.executable, "-c", "from dorm.cli.main import main; main()")
_READY_S = 120.0
_END_S = 10.0


class Running(NamedTuple):
    """A process and its address."""

    pid: int
    url: str = ""

    def cpu_s(self) -> float:
        """Return the CPU seconds that it and its children have used so far."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def waited_s(self) -> float:
        """Return for how long its threads have had work and no processor, in seconds; 0 where the system does not say."""
        waited_ns = 0
        for task in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                waited_ns += int(task.read_text().split()[1])
        return waited_ns / 1e9


class Cluster(NamedTuple):
    """What is measured: processes, and a connection of this one."""

    connection: Connection
    log_server: Running
    master: Running
    api: Running

    def cpu_s(self) -> dict[str, float]:
        """Return what each has computed so far, in seconds of one core."""
        return {
            "log_server": self.log_server.cpu_s(),
            "master": self.master.cpu_s(),
            "api": self.api.cpu_s(),
            "load": time.process_time(),
        }


@contextlib.asynccontextmanager
async def log_server(folder: Path, *, synced: bool) -> AsyncIterator[Running]:
    server = EmbeddedServer(folder, synced=synced)
    await server.start()
    try:
        yield Running(int(await asyncio.to_thread((folder / "nats.pid").read_text)), server.url)
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _process(log: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    with await asyncio.to_thread(log.open, "wb") as out:
        process = await asyncio.create_subprocess_exec(
            *_DORM, *arguments, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


@contextlib.asynccontextmanager
async def master(folder: Path, url: str) -> AsyncIterator[Running]:
    arguments = ("master", "--url", url, "--cluster", CLUSTER, "--key", str(folder / "master.nk"))
    async with _process(folder / "master.log", *arguments) as process:
        yield Running(process.pid)


@contextlib.asynccontextmanager
async def api(folder: Path, url: str) -> AsyncIterator[Running]:
    """Yield the API, once it has read the log.  Raises BenchError."""
    listen = f"{HOST}:{free_port(HOST)}"
    arguments = ("serve", "--listen", listen, "--url", url, "--cluster", CLUSTER)
    async with _process(folder / "api.log", *arguments) as process:
        psutil.Process(process.pid).nice(NICE)  # As `dorm up` starts it.
        await _ready(f"http://{listen}", process)
        yield Running(process.pid, f"http://{listen}")


async def _ready(url: str, process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_READY_S), aiohttp.ClientSession(base_url=url) as session:
            while True:
                if process.returncode is not None:
                    raise BenchError("the API ended at once", code="bench.process_ended")
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get("/v1/ready") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise BenchError(f"the API did not read the log within {_READY_S:g} s", code="bench.too_slow") from None
