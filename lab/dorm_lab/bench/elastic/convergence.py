"""How many rounds and how much time training needs to reach a target: uni-tasks, micro-tasks, and both kinds of elasticity.

A uni-task holds all samples of its worker.  Micro-tasks divide them further, so that there are `TASKS` times as many, as in
systems that move tasks instead of data.  Chicle (arXiv 1909.04885, sections 2 and 6) claims that more tasks need more epochs,
so that micro-tasks pay for their elasticity with slower convergence.

CoCoA trains until a duality gap of 1e-3, local SGD until a loss over all data.  The time is that of one core for each worker:
the sum over rounds of the CPU time of the slowest worker, without waiting.  With fewer cores than workers, wall time would
only reflect the cores.  Resized runs change their members after `RESIZED_AFTER` rounds or epochs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from dorm.bench import BenchError
from dorm_lab.bench.elastic import steps
from dorm_lab.bench.elastic.data import SAMPLES, write
from dorm_lab.bench.elastic.pauses import newest, script
from dorm_lab.bench.elastic.training import FIRST
from dorm_lab.bench.elastic.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dorm.bench.report import Progress

__all__ = ["L2", "PLANS", "RESIZED_AFTER", "SOLVERS", "TARGETS", "TASKS", "Trained", "convergence"]

TASKS = 4
"""Micro-tasks for each worker."""
RESIZED_AFTER = (1, 2)
PLANS = {
    "uni_1": ((1,), 1), "uni_2": ((2,), 1), "uni_4": ((4,), 1),
    "micro_1": ((1,), TASKS), "micro_2": ((2,), TASKS), "micro_4": ((4,), TASKS),
    "grown": ((1, 2, 4), 1), "shrunk": ((4, 2, 1), 1),
}  # fmt: skip
"""The numbers of workers, one after the other, and the tasks of each."""
SOLVERS = ("cocoa", "local")
TARGETS = {
    ("cocoa", "digits"): 1e-3,
    ("cocoa", "generated"): 1e-3,
    ("local", "digits"): 0.2,
    ("local", "generated"): 0.15,
}
"""Duality gap, and loss."""
L2 = {"digits": 1e-3, "generated": 1e-4}
"""λ of CoCoA: the smaller, the more rounds."""
_LOCAL_BATCH = 1024
"""Samples of all workers between two averages of local SGD."""
_LONGEST_S = 300.0
_MOST_EPOCHS = {"cocoa": 1000, "local": 200}


class Trained(NamedTuple):
    """One run to its target."""

    solver: str
    data: str
    plan: str
    rounds: int
    """Rounds of CoCoA, epochs of local SGD: in both, passes over the data."""
    seconds: float
    """CPU seconds of the slowest worker of each step, summed."""
    curve: list[tuple[int, float]]
    """Gap or loss, by round."""


def convergence(
    sets: Sequence[str], plans: Sequence[str], folder: Path, progress: Progress, solvers: Sequence[str] = SOLVERS
) -> Iterator[Trained]:
    """Yield one run after the other.  Raises BenchError."""
    for data in sets:
        path = write(data, folder)
        for solver in solvers:
            for plan in plans:
                progress(f"{solver} on {data}: {plan.replace('_', ', workers: ')}")
                yield _train(solver, data, plan, path, folder / f"{solver}-{data}-{plan}")


def _train(solver: str, data: str, plan: str, path: Path, folder: Path) -> Trained:
    sizes, tasks = PLANS[plan]
    log = folder / "log"
    log.mkdir(parents=True)
    arguments = [
        solver, "--data", str(path), "--records", str(log), "--target", str(TARGETS[solver, data]),
        "--epochs", str(_MOST_EPOCHS[solver]), "--batch", str(_LOCAL_BATCH), "--tasks", str(tasks),
        "--l2", str(L2[data]),
    ]  # fmt: skip
    if len(sizes) > 1:
        arguments += ["--hold", *map(str, RESIZED_AFTER)]
    workers = Workers(folder, script("training.py"), *arguments)
    try:
        members = list(range(sizes[0]))
        workers.announce(*members)
        per_epoch = 1 if solver == "cocoa" else -(-SAMPLES[data] // _LOCAL_BATCH)
        for size, after in zip(sizes[1:], RESIZED_AFTER, strict=False):
            # Members wait after this round until the next membership is announced; newcomers listen by then.
            last = (after + 1) * per_epoch - 1
            workers.until(lambda: newest(log, 1) >= last, timeout=_LONGEST_S)  # noqa: B023
            members = list(range(size)) if size > len(members) else members[:size]
            workers.announce(*members, prepared=True)
        if any(workers.wait(*members, timeout=_LONGEST_S)):
            raise workers.failed(f"{solver} on {data} did not reach its target")
        if len(sizes) > 1 and [c["members"] for c in workers.changes() if c["cause"] in ("grow", "shrink")][-1:] != [
            members
        ]:
            raise workers.failed(f"{solver} on {data} reached its target before it was resized")
    finally:
        workers.close()
    return _trained(solver, data, plan, steps.read(log))


def _trained(solver: str, data: str, plan: str, records: steps.Records) -> Trained:
    slowest: dict[int, float] = {}
    values: dict[int, float] = {}
    for made in records.values():
        for before, after in pairwise(made):
            # A newcomer's work before its first step does not count for a round.
            if before.step == after.step - 1 or (before.step == FIRST and after.step == 0):
                slowest[after.step] = max(slowest.get(after.step, 0.0), after.cpu_s - before.cpu_s)
            values[after.step] = after.value
    if not values:
        raise BenchError(f"{solver} on {data} made no step", code="bench.nothing_measured")
    per_epoch = 1 if solver == "cocoa" else _epoch(values)
    curve = [(step // per_epoch + 1, value) for step, value in sorted(values.items()) if (step + 1) % per_epoch == 0]
    return Trained(solver, data, plan, max(curve)[0], sum(slowest.values()), curve)


def _epoch(values: dict[int, float]) -> int:
    """Return the steps of an epoch: the loss is measured at its end, and is infinite before the first."""
    return 1 + min(step for step, value in values.items() if value != float("inf"))
