"""The comparison of OASiS's paper: utility, completion times, decision time, and the ratio to the optimum."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.bench.report import Figure, Progress, Report, this_machine
from dorm_lab.bench.oasis import rivals, workload
from dorm_lab.bench.oasis.running import Done, run
from dorm_lab.bench.oasis.workload import Sizes
from dorm_lab.policies.oasis.offline import optimum
from dorm_lab.policies.oasis.online import Market
from dorm_lab.policies.oasis.online import run as run_online
from dorm_lab.policies.oasis.prices import bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dorm_lab.policies.oasis.model import Cluster, Job

SCHEDULERS = ("oasis", "fifo", "drf", "rrh", "dorm")
_PASS = 997
"""The offset between the seeds of the jobs and those of the fixed numbers of workers."""


class Wanted(NamedTuple):
    sizes: Sizes = Sizes()
    seeds: int = 3
    small: int = 50
    """Instances whose optimum is computed."""
    scales: tuple[Sizes, ...] = (
        Sizes(200, 50, 100),
        Sizes(400, 50, 100),
        Sizes(100, 100, 100),
        Sizes(100, 200, 100),
        Sizes(100, 50, 200),
        Sizes(100, 50, 300),
    )
    """Further sizes at which the decision time is measured; each differs from `sizes` in one number."""


QUICK = Wanted(Sizes(30, 15, 50), seeds=1, small=10, scales=())


class Measured(NamedTuple):
    report: Report
    interrupted: bool


def bench_oasis(wanted: Wanted, *, progress: Progress) -> Measured:
    """Measure; interrupted, report what was measured until then."""
    figures: dict[str, Figure] = {}
    interrupted = False
    try:
        for measured in (_compared(wanted, progress), _scaled(wanted, progress), _ratios(wanted, progress)):
            figures.update(measured)
    except KeyboardInterrupt:
        interrupted = True
    sizes = wanted.sizes
    settings = {
        "jobs": sizes.jobs, "machines": sizes.machines, "slots": sizes.slots, "seeds": wanted.seeds,
        "small_instances": wanted.small,
    }  # fmt: skip
    return Measured(Report("oasis", this_machine(), settings, figures), interrupted)


def oasis(cluster: Cluster, jobs: list[Job]) -> Done:
    """Run the online algorithm, with the time of each admission or refusal."""
    market = Market(cluster, bounds(cluster, jobs))
    times, waits, worth = [], [], 0.0
    for job in jobs:
        began = time.perf_counter()
        schedule = market.admit(job)
        times.append(time.perf_counter() - began)
        if schedule is not None:
            waits.append(schedule.last - job.arrival + 1)
            worth += schedule.worth
    mean = float(np.mean(waits)) if waits else 0.0
    return Done(worth, len(waits), mean, float(np.mean(times)) if times else 0.0, max(times, default=0.0))


def _runs(cluster: Cluster, jobs: list[Job], seed: int) -> dict[str, Callable[[], Done]]:
    numbers = rivals.fixed_numbers(jobs, seed + _PASS)
    return {
        "oasis": lambda: oasis(cluster, jobs),
        "fifo": lambda: run(rivals.Fifo(cluster, numbers), cluster, jobs),
        "drf": lambda: run(rivals.Drf(cluster), cluster, jobs),
        "rrh": lambda: run(rivals.Rrh(cluster, numbers), cluster, jobs),
        "dorm": lambda: run(rivals.DormItself(cluster), cluster, jobs),
    }


def _compared(wanted: Wanted, progress: Progress) -> Iterator[tuple[str, Figure]]:
    """Means over the seeds."""
    runs: dict[str, list[Done]] = {name: [] for name in SCHEDULERS}
    for seed in range(wanted.seeds):
        cluster, jobs = workload.cluster(wanted.sizes), workload.jobs(wanted.sizes, seed)
        for name, measure in _runs(cluster, jobs, seed).items():
            progress(f"{name}, seed {seed}")
            runs[name].append(measure())
    for name, done in runs.items():
        yield f"{name}_utility", Figure(_mean(run.utility for run in done), "utility")
        yield f"{name}_done_jobs", Figure(_mean(run.jobs for run in done), "jobs")
        yield f"{name}_completion_slots", Figure(_mean(run.mean_slots for run in done), "slots")
        yield f"{name}_decision_mean_s", Figure(_mean(run.decision_s for run in done), "s")
        yield f"{name}_decision_max_s", Figure(max(run.longest_s for run in done), "s")


def _scaled(wanted: Wanted, progress: Progress) -> Iterator[tuple[str, Figure]]:
    for sizes in wanted.scales:
        progress(f"{sizes.jobs} jobs, {sizes.machines} machines, {sizes.slots} slots")
        done = oasis(workload.cluster(sizes), workload.jobs(sizes, 0))
        name = f"oasis_{sizes.jobs}_jobs_{sizes.machines}_machines_{sizes.slots}_slots"
        yield f"{name}_decision_mean_s", Figure(done.decision_s, "s")
        yield f"{name}_decision_max_s", Figure(done.longest_s, "s")


def _ratios(wanted: Wanted, progress: Progress) -> Iterator[tuple[str, Figure]]:
    """The optimum divided by OASiS's result, for instances whose optimum is proven, and 2α."""
    ratios, proven = [], []
    for seed in range(wanted.small):
        progress(f"optimum of instance {seed}")
        cluster, jobs = workload.small(seed)
        best, outcome = optimum(cluster, jobs), run_online(cluster, jobs)
        if best.proven and outcome.utility > 0:
            ratios.append(best.utility / outcome.utility)
            proven.append(outcome.limits.ratio)
    if not ratios:
        return
    yield "ratio_mean", Figure(_mean(ratios), "ratio")
    yield "ratio_max", Figure(max(ratios), "ratio")
    yield "ratio_bound_least", Figure(min(proven), "ratio")
    yield (
        "ratio_below_bound_share",
        Figure(_mean(ratio <= most for ratio, most in zip(ratios, proven, strict=True)), "ratio", ">= 1"),
    )
    yield "ratio_instances", Figure(len(ratios), "instances")


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
