"""Sweeps in the evaluation: one property of a workload changes from run to run, for a few contenders.

Both are on workload 6 of Pollux, on which parameters were chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm_lab.bench.evaluation.parts import HEADLINE, SPEED, Job, Part
from dorm_lab.compare import yardstick
from dorm_lab.compare.report import Bullets, Curves, Heading, Table, plain
from dorm_lab.workloads import by_name as workloads
from dorm_lab.workloads.traces.pollux import bounded
from events.instants import table_seconds as seconds
from replay.simulator.contenders import Contender, with_timings
from replay.simulator.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dorm_lab.compare.comparison import Comparison
    from dorm_lab.compare.report import Block
    from dorm_lab.workloads.traces.pollux import Bounds
    from replay.simulator.scenario import Scenario
    from replay.simulator.workload import Workload

WORKLOAD = "workload-6"
RESTARTS_S = (0.05, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0)
"""Seconds in which an app that was started or resized holds its containers and does nothing."""
ELASTIC = (0.2, 0.5, 1.0)
"""Fractions of the apps that may be resized; the others need what they asked for."""
_STRIDE = 0.6180339887498949
"""Steps of the golden section spread any part of the apps evenly over the workload."""

_WIDE = (Contender(SPEED, "dorm-speed"), Contender("sia, fixed", "sia"))
"""The faster one of the two policies that weigh goodput: the search of `pollux` would take half of the time of both sweeps."""
_OTHERS: tuple[tuple[Contender, Bounds], ...] = (
    (Contender(HEADLINE, "dorm", {"theta1": 0.1, "theta2": 0.1}), "requested"),
    (Contender("tiresias", "tiresias"), "rigid"),
)


class Sweep(msgspec.Struct, frozen=True):
    part: Part
    """Part whose seeds are the values."""
    values: tuple[float, ...]
    axis: str
    log: bool = False


def restart_cost(folder: Path, quick: bool) -> Sweep | None:
    workload = _workload(folder, quick)
    if workload is None:
        return None
    costs = RESTARTS_S[:: 3 if quick else 1]
    jobs = []
    for contender, bounds in (*((contender_, "wide") for contender_ in _WIDE), *_OTHERS):
        base = _scenario(workload, contender, bounds)
        for cost_s in costs:
            timings = Timings(checkpoint_s=0.0, stop_s=0.0, start_s=0.0, boot_s=cost_s, resume_s=cost_s)
            jobs.append(Job(contender.label, with_timings(base, timings)))
    about = (
        f"{WORKLOAD}, batch sizes fixed; every start and every resize takes the given time, from that of a live resize "
        "to that of a slow checkpoint.",
    )
    title = "Completion against the cost of a restart"
    part = Part("restart_cost", title, tuple(jobs), base="tiresias", about=about, seeds=tuple(map(plain, costs)))
    return Sweep(part, costs, "seconds of a start or resize", log=True)


def elastic_apps(folder: Path, quick: bool) -> Sweep | None:
    workload = _workload(folder, quick)
    if workload is None:
        return None
    jobs = []
    for contender, bounds in (*((contender_, "wide") for contender_ in _WIDE), *_OTHERS):
        for share in ELASTIC:
            mixed = tuple(
                bounded(app, bounds if (place * _STRIDE) % 1.0 < share else "rigid")
                for place, app in enumerate(workload.apps)
            )
            jobs.append(Job(contender.label, yardstick.simulated(mixed, workload.nodes, contender)))
    about = (
        f"{WORKLOAD}, batch sizes fixed; the given part of the apps may be resized, and the others run with the number of "
        "GPUs that they asked for.",
    )
    title = "Completion against the part of elastic apps"
    names = tuple(f"{share:.0%}" for share in ELASTIC)
    part = Part("elastic_apps", title, tuple(jobs), base="tiresias", about=about, seeds=names)
    return Sweep(part, tuple(100 * share for share in ELASTIC), "% elastic apps")


def _workload(folder: Path, quick: bool) -> Workload | None:
    file, profiles = folder / "pollux_workloads" / "workloads" / f"{WORKLOAD}.csv", folder / "pollux_profiles"
    if not file.is_file() or not profiles.is_dir():
        return None
    read = workloads.load(f"pollux:{file},profiles={profiles},batches=fixed")
    return msgspec.structs.replace(read, apps=read.apps[: 8 if quick else None])


def _scenario(workload: Workload, contender: Contender, bounds: Bounds) -> Scenario:
    apps = tuple(bounded(app, bounds) for app in workload.apps)
    return yardstick.simulated(apps, workload.nodes, contender)


def block(sweep: Sweep, comparison: Comparison) -> Iterator[Block]:
    """Yield this sweep's blocks of the report: mean completion by value."""
    yield Heading(sweep.part.title)
    yield Bullets(sweep.part.about)
    means = {label: [run.mean_completion_s for run in runs] for label, runs in comparison.runs.items()}
    rows = tuple(
        (value, *("-" if done[place] is None else seconds(done[place] or 0.0) for done in means.values()))
        for place, value in enumerate(sweep.part.seeds)
    )
    yield Table((sweep.axis, *comparison.labels), rows)
    lines = {
        label: tuple((x, y) for x, y in zip(sweep.values, done, strict=True) if y is not None)
        for label, done in means.items()
    }
    yield Curves(sweep.part.title, sweep.part.key, lines, x=sweep.axis, y="mean completion, s", log=sweep.log)


SWEEPS = (restart_cost, elastic_apps)
