"""The cost of looking back: folding a log from an archive and from a server, the state at a moment, an audit, memory, space.

The log is generated (`dorm.bench.long_log`): decisions of its first stretch are real, and its size is a number of records.
An *event* is one position of the log: a record of its own, or each fact in a round of the master's; rates are reported by
records too.  CPU times are those of all threads that take part; the state at a moment is wall time, from a closed file to the
state.  `msgpack_unpack_us` is the yardstick in the same run: `msgpack.unpackb` of the bodies to plain maps, no types, no
reading.

Everything lies in a temporary folder, about 50 bytes a record, which is removed afterwards.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dorm.bench import BenchError
from dorm.bench.apart import items_of, processors
from dorm.bench.log_server import bench_server
from dorm.bench.long_log import Stretch, events_in, stretch
from dorm.bench.report import Figure, Report, figure, spread, this_machine
from dorm_lab.bench.replay.steps import Jump, Made, Memory, Pass, fold, make, travel
from events.codec import decode
from events.kinds import Round
from events.log.memory import MemoryLog
from replay.audit.audit import Report as Audited
from replay.audit.audit import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dorm.bench.report import Progress

GOALS = {
    "archive_fold_events_per_s": ">= 500000",
    "jetstream_fold_events_per_s": ">= 150000",
    "peak_memory_mb": "<= 500",
}


class Sizes(NamedTuple):
    """Sizes to measure, in records."""

    records: int = 1_000_000
    large: int = 10_000_000
    """Length of the second log, for moments and memory; 0 for none."""
    server: int = 200_000
    """Length of the log on a server; 0 for none."""
    passes: int = 3
    jumps: int = 20
    bare: int = 5
    """Number of moments that are also looked up without snapshots."""
    bare_large: int = 2
    jobs: int = 0
    """Number of processes of the audit that takes all processors, 0 for as many as there are."""
    stretch: int = 10_000


QUICK = Sizes(records=100_000, large=0, server=20_000, passes=2, jumps=10, bare=2, stretch=4000)
"""Takes half a minute."""


class Done(NamedTuple):
    """The report, and whether it was stopped before everything was measured."""

    report: Report
    interrupted: bool


def bench_replay(sizes: Sizes, *, progress: Progress) -> Done:
    """Measure part by part; after Ctrl-C return the figures measured so far.  Raises BenchError, and EmbeddedError if the
    server can't be started."""
    machine = this_machine()
    bench = _Bench(sizes, progress)
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="dorm-bench-") as folder:
        try:
            bench.measure(Path(folder))
        except KeyboardInterrupt:
            interrupted = True
    if not bench.figures:
        raise BenchError("it was stopped before anything was measured", code="bench.stopped")
    settings = bench.settings | ({"interrupted": True} if interrupted else {})
    return Done(Report("replay", machine, settings, bench.figures), interrupted)


class _Bench:
    def __init__(self, sizes: Sizes, progress: Progress) -> None:
        self._sizes = sizes
        self._progress = progress
        self.figures: dict[str, Figure] = {}
        self.settings: dict[str, Any] = {
            "event": "a record, or each fact in a round",
            "clock": "CPU time, the best of the passes; state_at and restart: wall time",
        } | sizes._asdict()
        self._peaks: list[float] = []

    def measure(self, folder: Path) -> None:
        sizes, progress = self._sizes, self._progress
        progress("playing a cluster")
        played = stretch(min(sizes.stretch, sizes.records))
        self.settings["log"] = described(played)
        per_record = self._archive(played, folder / "log.dorm")
        self._verify(played)
        if sizes.server:
            self._server(played, per_record)
        if sizes.large:
            self._large(played, folder / "large.dorm")

    def _archive(self, played: Stretch, path: Path) -> float:
        """Measure an archive; return events per record."""
        sizes = self._sizes
        made = self._make(played, path, sizes.records)
        self._figure("archive_bytes_per_event", made.bytes / made.events, "bytes")
        self._figure("archive_bytes_per_record", made.bytes / made.records, "bytes")
        passes = [item for item in self._apart(fold, path, sizes.passes) if isinstance(item, Pass)]
        cpu, wall = min(p.cpu_s for p in passes), min(p.wall_s for p in passes)
        self._figure("archive_fold_events_per_s", made.events / cpu, "events/s")
        self._figure("archive_fold_records_per_s", made.records / cpu, "records/s")
        self._figure("archive_fold_us", 1e6 * cpu / made.records, "us")
        self._figure("archive_fold_wall_events_per_s", made.events / wall, "events/s")
        self._figure("msgpack_unpack_us", 1e6 * min(p.unpack_s for p in passes) / made.records, "us")
        self._travel(path, sizes.records, sizes.bare)
        return made.events / made.records

    def _large(self, played: Stretch, path: Path) -> None:
        sizes = self._sizes
        made = self._make(played, path, sizes.large)
        self._travel(path, sizes.large, sizes.bare_large)
        (took,) = [item for item in self._apart(fold, path, 1) if isinstance(item, Pass)]
        self._figure(f"archive_fold_{label(sizes.large)}_events_per_s", made.events / took.cpu_s, "events/s")
        self._figure("peak_memory_mb", max(self._peaks), "MiB")

    def _make(self, played: Stretch, path: Path, records: int) -> Made:
        (made,) = [item for item in self._apart(make, played, path, records) if isinstance(item, Made)]
        self._peaks.append(made.peak_mb)
        self.settings[f"archive_{label(records)}"] = made._asdict()
        return made

    def _travel(self, path: Path, records: int, bare: int) -> None:
        jumps = [j for j in self._apart(travel, path, records, self._sizes.jumps, bare, records) if isinstance(j, Jump)]
        name = f"state_at_{label(records)}"
        self.figures |= spread(name, [jump.wall_s for jump in jumps if jump.with_snapshots])
        if bare:
            self.figures |= spread(f"{name}_no_snapshots", [j.wall_s for j in jumps if not j.with_snapshots])

    def _verify(self, played: Stretch) -> None:
        """Verify the first stretch, whose decisions are real."""
        for jobs in sorted({1, self._sizes.jobs or processors()}):
            self._progress(f"deciding again, {jobs} at a time")
            cpu, wall = time.process_time(), time.perf_counter()
            report = asyncio.run(_audit(played, jobs))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if not report.good or report.not_checked:
                raise BenchError(
                    f"the log that was made is not what it should be: {report.divergence or report}",
                    code="replay.differs",
                )
            if jobs == 1:
                self._figure("verify_decisions_per_s", report.decisions_checked / cpu, "decisions/s")
                self.settings["verify"] = {"records": report.events, "decisions": report.decisions_checked}
            else:
                self.settings["verify"]["jobs"] = jobs
                self._figure("verify_all_jobs_decisions_per_s", report.decisions_checked / wall, "decisions/s")

    def _server(self, played: Stretch, events_per_record: float) -> None:
        measured = asyncio.run(bench_server(played, self._sizes.server, self._sizes.passes, self._progress))
        events = self._sizes.server * events_per_record
        self._figure("jetstream_fold_events_per_s", events / measured.cpu_s, "events/s")
        self._figure("jetstream_fold_us", 1e6 * measured.cpu_s / self._sizes.server, "us")
        self._figure("jetstream_fold_wall_events_per_s", events / measured.wall_s, "events/s")
        self._figure("restart_s", measured.restart_s, "s")
        self.settings["server"] = {
            "records_after_snapshot": measured.tail,
            "bytes_per_record": round(measured.bytes_per_record, 1),
        }

    def _figure(self, name: str, value: float, unit: str) -> None:
        self.figures[name] = figure(value, unit, GOALS.get(name))

    def _apart(self, function: Callable[..., Iterable[Any]], *arguments: Any) -> Iterator[Any]:
        """Yield what the function yields in a separate process, except its words and its memory."""
        for item in items_of([(function, arguments)]):
            if isinstance(item, str):
                self._progress(item)
            elif isinstance(item, Memory):
                self._peaks.append(item.peak_mb)
            else:
                yield item


async def _audit(played: Stretch, jobs: int) -> Audited:
    log = MemoryLog(lambda: 0, [*played.begin, *played.repeated])
    return await verify(log, jobs=jobs)


def label(records: int) -> str:
    """Return a count as in the names of figures: 1m, 250k, 999."""
    for size, letter in ((1_000_000, "m"), (1000, "k")):
        if records >= size and records % size == 0:
            return f"{records // size}{letter}"
    return str(records)


def described(played: Stretch) -> dict[str, Any]:
    """Describe the log, for comparing figures."""
    records = [*played.begin, *played.repeated]
    decoded = [decode(record) for record in records]
    rounds = [event for event in decoded if isinstance(event, Round)]
    return {
        "records_of_a_telling": len(played.repeated),
        "hours_of_a_telling": round(played.span / 3.6e12, 2),
        "apps_of_a_telling": sum(type(event).__name__ == "AppSubmitted" for event in decoded),
        "events_per_record": round(events_in(records) / len(records), 4),
        "facts_per_round": round(sum(len(event.events) for event in rounds) / len(rounds), 3),
        "allocations": sum(event.allocated for event in rounds),
        "bytes_per_record": round(sum(len(record.body) for record in records) / len(records), 1),
        "mix": dict(Counter(type(event).__name__ for event in decoded).most_common()),
        "facts": dict(Counter(type(fact).__name__ for event in rounds for fact in event.events).most_common()),
    }
