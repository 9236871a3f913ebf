"""Three NATS servers on this machine that hold a log together, for as long as a measurement takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dorm.bench import BenchError
from dorm.local.nats_server import find_binary, free_port
from dorm.security.quoting import quoted
from events.log.records import LogError
from events.nats.connection import Connection

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

_HOST = "127.0.0.1"
_READY_S = 60.0
CLUSTER = "scale"


class Servers:
    """The three processes, and a connection to their log."""

    def __init__(self, processes: list[Process], url: str, connection: Connection) -> None:
        self._processes = [psutil.Process(process.pid) for process in processes]
        self.url = url
        self.connection = connection

    def cpu_s(self) -> float:
        """Return the CPU seconds of all of them so far."""
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)


@contextlib.asynccontextmanager
async def three_servers() -> AsyncIterator[Servers]:
    """Yield them once a log on all three is writable.  Raises BenchError."""
    with tempfile.TemporaryDirectory(prefix="dorm-bench-") as folder:
        clients, routes = ([free_port(_HOST) for _ in range(3)] for _ in range(2))
        processes: list[Process] = []
        try:
            for number in range(3):
                file = await asyncio.to_thread(_configured, Path(folder), number, clients, routes)
                quiet = asyncio.subprocess.DEVNULL
                processes.append(
                    await asyncio.create_subprocess_exec(find_binary(), "-c", str(file), stdout=quiet, stderr=quiet)
                )
            url = ",".join(f"nats://{_HOST}:{port}" for port in clients)
            try:
                async with asyncio.timeout(_READY_S):
                    connection = await Connection.open(url, CLUSTER, create=True, replicas=3, patient=True)
            except (TimeoutError, LogError) as error:
                raise BenchError(f"three servers do not come up: {error}", code="bench.no_servers") from None
            try:
                yield Servers(processes, url, connection)
            finally:
                await connection.close()
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            for process in processes:
                await process.wait()


def _configured(folder: Path, number: int, clients: list[int], routes: list[int]) -> Path:
    home = folder / f"s{number}"
    home.mkdir()
    others = json.dumps([f"nats://{_HOST}:{port}" for port in routes])
    file = home / "nats.conf"
    file.write_text(
        f"server_name: s{number}\nhost: {_HOST}\nport: {clients[number]}\nmax_payload: 8MB\nmax_pending: 64MB\n"
        f"no_fast_producer_stall: true\n"
        f"jetstream {{ store_dir: {quoted(home)}, sync_interval: always, max_file_store: 8GB }}\n"
        f"cluster {{ name: scale, host: {_HOST}, port: {routes[number]}, routes: {others} }}\n"
    )
    return file
