"""The whole bench: see the package.

`read_p99_s` is from the time at which a read was due, so a late answer delays no later read.  A submission is refused by the
master (its app is larger than any node), and its time is until that answer.  A stream's lag is from a record's log time until
its reader has it.  The moments of the long log are drawn at random; each has to be folded from the nearest snapshot. An app is
drawn when its name is in the page; that is counted from the record of its acceptance.  A resize is drawn when the picture of
the nodes shows a position at or after its record, from which it is counted.

All processes share this machine's processors, so `reads_cores_of_…` and `readers_cores_of_…` say how many cores each of them
used meanwhile: if their sum reaches the machine's cores, the machine is too small for the measurement.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dorm.bench import BenchError
from dorm.bench.apart import items_of
from dorm.bench.api import callers
from dorm.bench.api.browser import browser_lags, resize_lags
from dorm.bench.api.load import Load
from dorm.bench.api.processes import CLUSTER, Cluster, api, log_server, master
from dorm.bench.api.rounds import measured_rounds
from dorm.bench.log_server import fill, keep_snapshots
from dorm.bench.long_log import stretch
from dorm.bench.page import measure, page_bytes
from dorm.bench.report import Figure, Report, figure, percentile, spread, this_machine
from events.nats.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dorm.bench.report import Progress

T = TypeVar("T")

PARTS = ("live", "moments", "browser", "page")
GOALS = {
    "read_p99_s": "<= 0.05",
    "sse_lag_p99_s": "<= 0.5",
    "state_at_long_log_p95_s": "<= 0.5",
    "master_round_change_percent": "<= 5",
    "page_frame_p95_ms": "<= 33",
    "event_to_browser_p95_s": "<= 0.5",
    "resize_to_picture_max_s": "<= 1",
    "page_kb": "<= 300",
}


class Sizes(NamedTuple):
    """How much is measured."""

    seconds: float = 30.0
    """Duration of each part."""
    nodes: int = 20
    events_per_s: float = 100.0
    reads_per_s: float = 200.0
    submissions_per_s: float = 5.0
    readers: int = 1000
    records: int = 1_000_000
    """Length of the long log; 0 for none."""
    moments: int = 60
    parts: tuple[str, ...] = PARTS
    """Measured parts of PARTS.  Those with a browser are left out if there is none."""


QUICK = Sizes(seconds=6.0, readers=200, records=60_000, moments=15, parts=("live", "moments"))


async def bench_api(sizes: Sizes, *, progress: Progress) -> Report:
    """Measure.  Raises BenchError, EmbeddedError."""
    machine = this_machine()
    figures: dict[str, Figure] = {}
    if "live" in sizes.parts or "browser" in sizes.parts:
        with tempfile.TemporaryDirectory(prefix="dorm-bench-") as folder:
            figures |= await _live(Path(folder), sizes, progress)
    if "moments" in sizes.parts and sizes.records:
        with tempfile.TemporaryDirectory(prefix="dorm-bench-") as folder:
            figures |= await _long(Path(folder), sizes, progress)
    if "page" in sizes.parts:
        with tempfile.TemporaryDirectory(prefix="dorm-bench-") as folder:
            figures |= await _page(Path(folder), progress)
    settings: dict[str, Any] = {
        **sizes._asdict(),
        "reads": list(callers.READS),
        "processes": "log server, master, API and callers are processes of their own, on this machine",
    }
    return Report("api", machine, settings, figures)


async def _page(folder: Path, progress: Progress) -> dict[str, Figure]:
    progress("the dashboard of a large cluster, in a browser")
    figures = {"page_kb": figure(page_bytes() / 1000, "kB", GOALS["page_kb"])}
    try:
        smaller = await measure(folder, 500, 200)
        drawn = await measure(folder)
    except BenchError as error:
        progress(f"the dashboard is not drawn: {error}")
        return figures
    return {
        **figures,
        "page_frame_p95_ms": figure(drawn.page_frame_p95_ms, "ms", GOALS["page_frame_p95_ms"]),
        "page_frame_max_ms": figure(drawn.page_frame_max_ms, "ms"),
        "page_frame_500_apps_p95_ms": figure(smaller.page_frame_p95_ms, "ms", GOALS["page_frame_p95_ms"]),
        "page_load_s": figure(drawn.page_load_s, "s"),
    }


async def _live(folder: Path, sizes: Sizes, progress: Progress) -> dict[str, Figure]:
    async with log_server(folder / "nats", synced=True) as server:
        connection = await Connection.open(server.url, CLUSTER, create=True)
        try:
            load = Load(connection, sizes.nodes, sizes.events_per_s)
            async with master(folder, server.url) as leader, load.running(), api(folder, server.url) as served:
                progress("warming up")
                await asyncio.sleep(min(sizes.seconds, 5.0))
                cluster = Cluster(connection, server, leader, served)
                figures = await _measured(cluster, sizes, progress) if "live" in sizes.parts else {}
                return figures | (await _browser(cluster, sizes, progress) if "browser" in sizes.parts else {})
        finally:
            await connection.close()


async def _browser(cluster: Cluster, sizes: Sizes, progress: Progress) -> dict[str, Figure]:
    try:
        lags = await browser_lags(cluster.connection, cluster.api.url, sizes.seconds, progress)
        resizes = await resize_lags(cluster.connection, cluster.api.url, sizes.seconds, progress)
    except BenchError as error:
        if error.code != "package.missing":
            raise
        progress(f"nothing is drawn in a browser: {error}")
        return {}
    figures = spread("event_to_browser", lags) | spread("resize_to_picture", resizes)
    figures["resize_to_picture_max_s"] = figure(max(resizes), "s")
    return {
        name: value if name not in GOALS else figure(value.value, value.unit, GOALS[name])
        for name, value in figures.items()
    }


async def _measured(cluster: Cluster, sizes: Sizes, progress: Progress) -> dict[str, Figure]:
    url, seconds = cluster.api.url, sizes.seconds
    progress(f"reads, {sizes.reads_per_s:g} a second")
    before = cluster.cpu_s()
    read = await _apart(callers.reads, url, sizes.reads_per_s, seconds)
    shares = _cores("reads", before, cluster.cpu_s(), read.cpu_s, seconds)
    progress(f"submissions, {sizes.submissions_per_s:g} a second")
    sent = await _apart(callers.submissions, url, sizes.submissions_per_s, seconds)
    rounds = await measured_rounds(cluster, sizes.readers, seconds, progress)
    return _figures(read.seconds, sent.seconds) | rounds.figures(GOALS) | shares


def _cores(
    what: str, before: dict[str, float], after: dict[str, float], callers_s: float, seconds: float
) -> dict[str, Figure]:
    """Return how many cores each process used, on average over so many seconds."""
    used = {name: after[name] - before[name] for name in before} | {"callers": callers_s}
    return {f"{what}_cores_of_{name}": figure(cpu_s / seconds, "cores") for name, cpu_s in used.items()}


def _figures(read: list[float], sent: list[float]) -> dict[str, Figure]:
    return {
        "read_p50_s": figure(percentile(read, 50), "s"),
        "read_p99_s": figure(percentile(read, 99), "s", GOALS["read_p99_s"]),
        "submit_p50_s": figure(percentile(sent, 50), "s"),
        "submit_p99_s": figure(percentile(sent, 99), "s"),
    }


async def _long(folder: Path, sizes: Sizes, progress: Progress) -> dict[str, Figure]:
    progress("playing a cluster")
    played = await asyncio.to_thread(stretch, min(10_000, sizes.records))
    async with log_server(folder / "nats", synced=False) as server:
        connection = await Connection.open(server.url, CLUSTER, create=True)
        try:
            await fill(connection, played, sizes.records, progress)
            progress("snapshots, as a master would have taken them")
            await keep_snapshots(connection, sizes.records)
        finally:
            await connection.close()
        async with api(folder, server.url) as served:
            progress(f"{sizes.moments} moments of {sizes.records:,} records")
            chance = random.Random(0)
            seqs = [chance.randint(1, sizes.records) for _ in range(sizes.moments)]
            took = await _apart(callers.moments, served.url, seqs)
    name = "state_at_1m" if sizes.records == 1_000_000 else "state_at"
    figures = spread(name, took)
    p95 = f"{name}_p95_s"
    return {**figures, p95: figure(figures[p95].value, "s", GOALS["state_at_long_log_p95_s"])}


async def _apart(function: Callable[..., Iterable[Any]], *arguments: Any) -> Any:
    """Return what a function yields in its own process."""

    def work() -> Any:
        (result,) = items_of([(function, arguments)])
        return result

    return await asyncio.to_thread(work)
