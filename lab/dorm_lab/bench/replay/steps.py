"""The parts of `dorm bench replay` that run in separate processes, so that measured memory and time are theirs alone."""

from __future__ import annotations

import asyncio
import random
import resource
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from dorm.bench import BenchError
from dorm.bench.long_log import Stretch, events_in, records_of
from dorm.core.state import digest
from events.archive.segments import SegmentLog
from events.log.memory import MemoryLog
from events.log.stores import NoSnapshots
from replay.export.export import export
from replay.export.sink import FileFormat
from replay.moments import AtSequence
from replay.travel.travel import state_at

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence
    from pathlib import Path

    from dorm.core.state import State
    from events.log.records import Record


class Made(NamedTuple):
    """An archive of the history."""

    records: int
    events: int
    bytes: int
    snapshots: int
    peak_mb: float


class Pass(NamedTuple):
    """One fold of a whole archive: CPU seconds of reading, decoding and folding it, and the wall's."""

    cpu_s: float
    wall_s: float
    unpack_s: float
    """CPU seconds of `msgpack.unpackb` of its bodies, right after it."""


class Jump(NamedTuple):
    """One lookup of the state at a moment."""

    wall_s: float
    with_snapshots: bool


class Memory(NamedTuple):
    """Peak memory of the process, in MiB."""

    peak_mb: float


class _Repeated(MemoryLog):
    """The history as a log to export, generated while it is read."""

    def __init__(self, played: Stretch, records: int) -> None:
        super().__init__(lambda: 0)
        self._stretch, self._count = played, records

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        assert (after, tuple(subjects), follow) == (0, (), False), "an export reads from the start"
        batches = records_of(self._stretch, self._count)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch

    async def end(self) -> int:
        return self._count


class Bare(SegmentLog):
    """An archive whose snapshots are ignored."""

    @property
    def snapshots(self) -> NoSnapshots:
        return NoSnapshots()


def make(played: Stretch, path: Path, records: int) -> Iterator[Made | str]:
    """Write an archive, as `dorm replay export` does: folding along, with snapshots.  Yields its progress in words."""
    yield f"writing a log of {records:,} records"
    made = asyncio.run(export(_Repeated(played, records), path, form=FileFormat.archive))
    counted = _events(played, records)
    yield Made(records, counted, made.bytes, asyncio.run(_snapshots(path)), _peak())


def _events(played: Stretch, records: int) -> int:
    """Return the events of the whole history, computed from one stretch and the remainder."""
    rounds, rest = divmod(records - len(played.begin), len(played.repeated))
    if rounds < 0:
        return events_in(played.begin[:records])
    return events_in(played.begin) + rounds * events_in(played.repeated) + events_in(played.repeated[:rest])


async def _snapshots(path: Path) -> int:
    log = await SegmentLog.open(path)
    try:
        return len(await log.snapshots.infos())
    finally:
        await log.close()


def fold(path: Path, passes: int) -> Iterator[Pass | Memory | str]:
    """Read, decode and fold an archive from its first record to its last, `passes` times.  Raises BenchError."""
    for number in range(passes):
        yield f"folding, pass {number + 1} of {passes}"
        wall, cpu = time.perf_counter(), time.process_time()
        state = asyncio.run(_fold(path))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        _check(state)
        yield Pass(cpu, wall, asyncio.run(_unpack(path)))
    yield Memory(_peak())


async def _fold(path: Path) -> State:
    log = await Bare.open(path)
    try:
        return await state_at(log)
    finally:
        await log.close()


def _check(state: State) -> None:
    """Check that the fold acted on every record: a fold that skips records is faster than any real one."""
    counters = state.counters
    if counters.ignored or counters.unknown or counters.unreadable or counters.void_rounds:
        raise BenchError(f"the log holds what the fold does not act on: {counters}", code="bench.wrong_answer")


async def _unpack(path: Path) -> float:
    """Return the yardstick: bodies to plain maps, without reading the file and without types."""
    log = await Bare.open(path)
    took = 0.0
    try:
        async with aclosing(log.read()) as batches:
            async for batch in batches:
                began = time.thread_time()
                for record in batch:
                    msgpack.unpackb(record.body)
                took += time.thread_time() - began
    finally:
        await log.close()
    return took


def travel(path: Path, records: int, jumps: int, bare: int, seed: int) -> Iterator[Jump | Memory | str]:
    """Yield the state at random sequences, with the archive's snapshots and (`bare` of them) without.  Raises BenchError if
    the two differ."""
    chance = random.Random(seed)
    for number in range(jumps):
        moment = AtSequence(chance.randint(1, records))
        yield f"the state at a moment, {number + 1} of {jumps}"
        state, took = asyncio.run(_jump(path, moment, with_snapshots=True))
        yield Jump(took, True)
        if number < bare:
            yield f"the state at a moment without snapshots, {number + 1} of {bare}"
            again, took = asyncio.run(_jump(path, moment, with_snapshots=False))
            yield Jump(took, False)
            if digest(state) != digest(again):
                raise BenchError(f"the state at {moment.seq} is another one from a snapshot", code="bench.wrong_answer")
    yield Memory(_peak())


async def _jump(path: Path, moment: AtSequence, *, with_snapshots: bool) -> tuple[State, float]:
    """Return the state, and the seconds from a closed file to it."""
    began = time.perf_counter()
    log = await (SegmentLog if with_snapshots else Bare).open(path)
    try:
        return await state_at(log, moment), time.perf_counter() - began
    finally:
        await log.close()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
