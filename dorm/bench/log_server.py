"""The part of `dorm bench replay` that reads from a separate NATS server, and starts from its snapshots as a master does."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dorm.bench import BenchError
from dorm.bench.long_log import records_of
from dorm.core.snapshot import FOLDED_BY, dump
from dorm.core.state import State
from dorm.local.nats_server import EmbeddedServer
from dorm.snapshots import newest
from events.log.stores import SNAPSHOT_EVERY
from events.nats.connection import Connection
from events.sources import fingerprint
from replay.travel.travel import fold, fold_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.bench.long_log import Stretch
    from dorm.bench.report import Progress

_CLUSTER = "bench"
_WINDOW = 512
"""Records in flight to the server at a time."""


class Server(NamedTuple):
    """Measurements on the server."""

    cpu_s: float
    """CPU time of this process (the server's own is not counted) in the best pass over all records."""
    wall_s: float
    restart_s: float
    """Wall time from a new connection to the state at the log's end: the newest snapshot, and the records after it."""
    tail: int
    """Number of those records."""
    bytes_per_record: float
    """Bytes of a record on the server's disk."""


async def bench_server(played: Stretch, records: int, passes: int, progress: Progress) -> Server:
    """Measure a server.  Raises BenchError, EmbeddedError, and what a log raises."""
    with tempfile.TemporaryDirectory(prefix="dorm-bench-") as folder:
        server = EmbeddedServer(Path(folder), synced=False)
        await server.start()
        try:
            async with _log(server, create=True) as connection:
                await fill(connection, played, records, progress)
                await keep_snapshots(connection, records)
            times = [await _fold(server, records, f"{number + 1} of {passes}", progress) for number in range(passes)]
            restart_s, tail = await _restart(server, records)
            used = await asyncio.to_thread(_blocks, Path(folder))
        finally:
            await server.stop()
    return Server(min(cpu for cpu, _ in times), min(wall for _, wall in times), restart_s, tail, used / records)


def _blocks(folder: Path) -> int:
    """Return the bytes of the files in which the server stores messages."""
    return sum(file.stat().st_size for file in folder.rglob("*.blk"))


@contextlib.asynccontextmanager
async def _log(server: EmbeddedServer, *, create: bool = False) -> AsyncIterator[Connection]:
    connection = await Connection.open(server.url, _CLUSTER, create=create)
    try:
        yield connection
    finally:
        await connection.close()


async def fill(connection: Connection, played: Stretch, records: int, progress: Progress) -> None:
    """Append through the log itself, so records are stored like a cluster's."""
    log, done = connection.log, 0
    for batch in records_of(played, records):
        for begin in range(0, len(batch), _WINDOW):
            window = batch[begin : begin + _WINDOW]
            async with asyncio.TaskGroup() as group:
                for record in window:
                    group.create_task(log.append(record.subject, record.body, msg_id=record.msg_id, timeout=30.0))
            done += len(window)
            progress(f"filling a server's log, {done:,} of {records:,}")


async def keep_snapshots(connection: Connection, records: int) -> None:
    """Store snapshots as a master would have taken them, the last one as old as possible."""
    state, build = State(), fingerprint(*FOLDED_BY)
    async with aclosing(connection.log.read()) as batches:
        async for batch in batches:
            for upto in [r.seq for r in batch if r.seq % SNAPSHOT_EVERY == 0 and r.seq < records]:
                fold(state, batch[state.seq - batch[0].seq + 1 :], upto)
                await connection.log.snapshots.put(*dump(state, build=build))
            fold(state, batch[max(0, state.seq - batch[0].seq + 1) :], records)


async def _fold(server: EmbeddedServer, records: int, which: str, progress: Progress) -> tuple[float, float]:
    """Return CPU and wall seconds from a new connection to the log's end, from its first record on."""
    progress(f"folding from a server, pass {which}")
    wall, cpu = time.perf_counter(), time.process_time()
    state = State()
    async with _log(server) as connection:
        await fold_on(connection.log, state, await connection.log.end())
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if state.seq != records or state.counters.ignored:
        raise BenchError(
            f"the server's log folds to {state.seq} of {records} records: {state.counters}", code="bench.wrong_answer"
        )
    return cpu, wall


async def _restart(server: EmbeddedServer, records: int) -> tuple[float, int]:
    began = time.perf_counter()
    async with _log(server) as connection:
        snapshot = await newest(connection.log)
        state = snapshot[1] if snapshot else State()
        begin = state.seq
        await fold_on(connection.log, state, await connection.log.end())
    return time.perf_counter() - began, records - begin
