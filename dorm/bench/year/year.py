"""A log over a year: start-up, memory, the state at a moment, and disk of a log that grows and is rotated again and again.

A history of any length (`dorm.bench.long_log`) goes into a real server, chunk by chunk.  In ten thousand records, one
progress report is replaced by a seal with a real key, so the log can be rotated like a cluster's.  After each chunk, the
rotator moves the sealed records, and a reader starts with a new connection and computes the state at random moments of the
log.

The server gives the records its own time, so here hours of the history pass in a second.  Ended apps are therefore kept for
five seconds instead of a day: with the usual retention, all of them would still be in the state, as if a year's apps had ended
since yesterday.  For the same reason, the server remembers messages' ids for five seconds instead of ten minutes, which would
be those of the last ten million records.

A year of a busy cluster has 6 × 10^8 records.  The bench measures the first `records` of them.  If figures do not grow from
the first chunk to the last, they hold for a year.  Only the archives' size is extrapolated, by their bytes per record.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import psutil

from dorm.bench import BenchError
from dorm.bench.long_log import records_of, stretch
from dorm.bench.report import Report, figure, percentile, this_machine
from dorm.bench.year.filling import filling
from dorm.core.evolve import evolve
from dorm.core.snapshot import dump
from dorm.core.state import SCHEMA, State
from dorm.history import with_history
from dorm.local.nats_server import EmbeddedServer
from dorm.rotation.policy import Policy
from dorm.rotation.rotator import Rotator
from dorm.snapshots import drop_surplus, newest
from events import subjects
from events.archive.stores import FolderStore
from events.archive.whole import WholeLog
from events.chain import Chain, SealKey, new_seed
from events.codec import decode, encode
from events.kinds import AppProgressed, PolicyChanged, Round
from events.log.records import Record
from events.log.stores import SNAPSHOT_EVERY, identity
from events.nats.connection import Connection
from replay.frames import build
from replay.moments import AtSequence
from replay.travel.travel import fold_on, state_at
from replay.whole_file import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from dorm.bench.report import Figure, Progress
    from dorm.bench.year.filling import Filler

_CLUSTER = "bench"
YEAR = 600_000_000
"""Records of a year: 19 a second."""
_KEEP = 20_000
_RETENTION_S = 5.0
"""About ten thousand times shorter than usual, because time passes that much faster."""
_MOMENTS = 20
_MB = 2**20


class _Look(NamedTuple):
    """A reader's measurements after a chunk."""

    records: int
    startup_s: float
    at_p50_s: float
    stream_bytes: int
    memory: int
    """Memory of this process at that time, in bytes; it fills, rotates and reads."""
    server_memory: int
    apps: int
    """Apps in the state: live ones, and those that ended recently enough to be kept."""


class _Spent(NamedTuple):
    """Where the time went, in seconds, and how much was moved."""

    filling_s: float
    rotation_s: float
    moved: int
    """Records in archives."""


class _Grown:
    """The log as its only writer knows it: state, chain and key."""

    def __init__(self) -> None:
        self.key = SealKey(new_seed())
        self.state = State()
        self.chain = Chain()
        self.sealed = 0
        self.last: Record | None = None

    def take(self, batch: Sequence[Record]) -> None:
        for record in batch:
            evolve(self.state, record)
            self.chain.follow(record)
        self.last = batch[-1]

    def seal(self) -> Round:
        """Return the round with a seal of everything so far."""
        seal = self.key.seal(_CLUSTER, self.state.epoch, self.chain, self.sealed)
        self.chain.forget(self.chain.seq)
        self.sealed = self.chain.seq
        id = f"bench.seal.{self.chain.seq}"
        return Round(
            id=id, at=self.state.time, by="bench", epoch=self.state.epoch, basis=self.chain.seq, allocated=False,
            events=[seal], core=SCHEMA,
        )  # fmt: skip


async def bench_year(*, records: int, chunk: int, progress: Progress) -> Report:
    """Measure a log of this many records that is rotated after each `chunk` of them.  Raises BenchError, EmbeddedError, and
    what a log raises."""
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="dorm-bench-") as folder:
        server = EmbeddedServer(Path(folder, "nats"), synced=False)
        await server.start()
        try:
            looks, spent = await _grow(server, Path(folder), records, chunk, progress)
            archives = await asyncio.to_thread(_bytes_of, Path(folder, "archives"), "*.dorm")
        finally:
            await server.stop()
    return Report(
        bench="year",
        machine=machine,
        settings={
            "records": records,
            "chunk": chunk,
            "kept_in_the_stream": _KEEP,
            "retention_s": _RETENTION_S,
            "server_syncs": False,
            "extrapolated": f"year_archives_bytes, to {YEAR:,} records",
        },
        figures=_figures(looks, spent, archives),
    )


def _figures(looks: Sequence[_Look], spent: _Spent, archives: int) -> dict[str, Figure]:
    first, last, moved = looks[0], looks[-1], spent.moved
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "count_records": figure(last.records, "records"),
        "count_apps_in_state": figure(last.apps, "apps"),
        "startup_first_s": figure(first.startup_s, "s"),
        "startup_last_s": figure(last.startup_s, "s", "<= 2"),
        "at_first_p50_s": figure(first.at_p50_s, "s"),
        "at_last_p50_s": figure(last.at_p50_s, "s"),
        "stream_bytes": figure(last.stream_bytes, "bytes"),
        "archives_bytes": figure(archives, "bytes"),
        "archives_bytes_per_record": figure(archives / moved, "bytes"),
        "year_archives_bytes": figure(archives / moved * YEAR, "bytes"),
        "count_rotated": figure(moved, "records"),
        "rotation_s": figure(spent.rotation_s, "s"),
        "rotation_records_per_s": figure(moved / spent.rotation_s, "records/s"),
        "filling_records_per_s": figure(last.records / spent.filling_s, "records/s"),
        "memory_first_bytes": figure(first.memory, "bytes"),
        "memory_last_bytes": figure(last.memory, "bytes"),
        "server_memory_last_bytes": figure(last.server_memory, "bytes"),
        "peak_memory_bytes": figure(peak, "bytes", f"<= {500 * _MB}"),
    }


async def _grow(
    server: EmbeddedServer, folder: Path, records: int, chunk: int, progress: Progress
) -> tuple[list[_Look], _Spent]:
    """Return the readers' measurements, and where the time went."""
    played = await asyncio.to_thread(stretch)
    grown, looks, filling_s, rotation_s, moved = _Grown(), [], 0.0, 0.0, 0
    process = psutil.Process(int(await asyncio.to_thread((folder / "nats" / "nats.pid").read_text)))
    async with _log(server, create=True) as connection, filling(server.url) as filler:
        rotator = Rotator(
            WholeLog(connection.stream, _CLUSTER, place=str(folder / "archives")), _CLUSTER,
            FolderStore(folder / "archives", _CLUSTER), grown.key,
            name="bench", spool=folder / "spool", clock=time.time_ns,
        )  # fmt: skip
        retention = PolicyChanged(id="bench.retention", by="bench", retention_s=_RETENTION_S)
        subject = subjects.fact(_CLUSTER, PolicyChanged.__name__, "bench")
        first = await connection.log.append(subject, encode(retention), msg_id=retention.id)
        await _read(connection, grown, first.seq)
        await filler.forget_ids_after(_CLUSTER, _RETENTION_S)
        due = chunk
        for batch in records_of(played, records):
            began = time.perf_counter()
            batch = _shifted(batch, grown.chain.seq + 1 - batch[0].seq)
            await _fill(connection, filler, grown, batch)
            filling_s += time.perf_counter() - began
            progress(f"{batch[-1].seq:,} of {records:,} records")
            if batch[-1].seq < min(due, records):
                continue
            due += chunk
            began = time.perf_counter()
            while (cut := await rotator.step(Policy(keep_records=_KEEP, keep_s=0.0))) is not None:
                moved = cut.upto
            rotation_s += time.perf_counter() - began
            await _read(connection, grown, await connection.stream.end())
            looks.append(await _look(server, process, progress))
    if not moved:
        raise BenchError("nothing was rotated; take more records, or smaller chunks", code="bench.nothing_measured")
    return looks, _Spent(filling_s, rotation_s, moved)


async def _fill(connection: Connection, filler: Filler, grown: _Grown, batch: Sequence[Record]) -> None:
    """Append a batch, with one of its records replaced by a seal, and fold it."""
    place = _place_of_seal(batch)
    for part in [batch] if place is None else [batch[:place], batch[place + 1 :]]:
        await filler.append(part)
        await _read(connection, grown, part[-1].seq if part else grown.chain.seq)
        if place is not None and grown.chain.seq == batch[0].seq + place - 1:
            seal = grown.seal()
            await connection.log.append(subjects.rounds(_CLUSTER), encode(seal), msg_id=seal.id)


def _shifted(batch: list[Record], by: int) -> list[Record]:
    """Return the records shifted by this many sequences: the cuts of earlier rotations lie between them."""
    shifted = []
    for record in batch if by else ():
        event, body = decode(record), record.body
        if isinstance(event, Round):
            body = encode(msgspec.structs.replace(event, basis=event.basis + by))
        shifted.append(Record(record.seq + by, record.time, record.subject, body, record.msg_id))
    return shifted or batch


def _place_of_seal(batch: Sequence[Record]) -> int | None:
    """Return the index of the last progress report that every later round covers with its basis: a seal in its place makes
    none of them void."""
    basis = 1 << 62
    for index in range(len(batch) - 1, 0, -1):
        event = decode(batch[index])
        if isinstance(event, Round):
            basis = min(basis, event.basis)
        elif isinstance(event, AppProgressed) and batch[index].seq <= basis:
            return index
    return None


async def _read(connection: Connection, grown: _Grown, upto: int) -> None:
    """Follow the chain up to what was appended, with the snapshots that a master takes."""
    if grown.chain.seq >= upto:
        return
    async with contextlib.aclosing(connection.stream.read(after=grown.chain.seq)) as batches:
        async for batch in batches:
            await in_thread(grown.take, batch)
    if grown.last is not None and grown.chain.seq // SNAPSHOT_EVERY * SNAPSHOT_EVERY > upto - SNAPSHOT_EVERY:
        info, body = dump(grown.state, build=build(), chain=grown.chain.value.hex())
        await connection.log.snapshots.put(msgspec.structs.replace(info, record=identity(grown.last)), body)
        await drop_surplus(connection.stream)


async def _look(server: EmbeddedServer, process: psutil.Process, progress: Progress) -> _Look:
    """Start as a master or a client does, and compute the state at moments all over the log."""
    progress("looking at moments all over the log")
    began = time.perf_counter()
    async with _log(server) as connection:
        snapshot = await newest(connection.log)
        if snapshot is None:
            raise BenchError("there is no snapshot to start from", code="bench.wrong_answer")
        end = await connection.log.end()
        await fold_on(connection.log, snapshot[1], end)
        startup_s = time.perf_counter() - began
        chance, times = random.Random(end), []
        for _ in range(_MOMENTS):
            began = time.perf_counter()
            state = await state_at(connection.log, AtSequence(chance.randint(1, end)))
            times.append(time.perf_counter() - began)
            if state.counters.ignored:
                raise BenchError(
                    f"the state at {state.seq} is not as it was: {state.counters}", code="bench.wrong_answer"
                )
        room = await connection.stream.room()
    own_bytes, server_bytes = psutil.Process().memory_info().rss, process.memory_info().rss
    return _Look(end, startup_s, percentile(times, 50), room.taken, own_bytes, server_bytes, len(snapshot[1].apps))


@contextlib.asynccontextmanager
async def _log(server: EmbeddedServer, *, create: bool = False) -> AsyncIterator[Connection]:
    connection = with_history(await Connection.open(server.url, _CLUSTER, create=create))
    try:
        yield connection
    finally:
        await connection.log.close()
        await connection.close()


def _bytes_of(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.rglob(pattern))
