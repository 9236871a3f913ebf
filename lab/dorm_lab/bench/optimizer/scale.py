"""How the cost of a round grows with the cluster: the optimizer's bench over all sizes that have goals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dorm.bench import BenchError
from dorm.bench.report import Figure, Report, figure, percentile, this_machine
from dorm_lab.bench.optimizer.optimizer import check, figures, measure, settings
from dorm_lab.bench.optimizer.samples import Run, Samples, goals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dorm.bench.report import Progress

SIZES = (
    Run(apps=10, nodes=20, shapes=3, events=13, sequences=24),
    Run(apps=20, nodes=20, shapes=3, events=11, sequences=12),
    Run(apps=30, nodes=20, shapes=3, events=10, sequences=8),
    Run(apps=100, nodes=100, shapes=3, events=40, sequences=5),
    Run(apps=500, nodes=1_000, shapes=3, events=40),
    Run(apps=500, nodes=1_000, shapes=12, events=40),
    Run(apps=2_000, nodes=10_000, shapes=3, events=25),
    Run(apps=10_000, nodes=50_000, shapes=3, events=5),
)
"""The three smallest are also solved exactly, 568 problems in all.  At 100 × 100, the result depends on the sequence more than
on anything else, so there are several."""
SMALL_SIZES = "up_to_a30_n20_s3"
"""Prefix of figures over all problems that were solved exactly, whatever their size."""


class Scale(NamedTuple):
    """All sizes, each with its own figures; the report has all of them under names prefixed by the size."""

    report: Report
    sizes: list[tuple[Run, dict[str, Figure]]]
    interrupted: bool


def chosen_sizes(*, up_to: int, events: int | None = None, **changes: Any) -> list[Run]:
    """Return sizes of at most `up_to` apps, with other settings if given.  Raises BenchError if none is left."""
    if events is not None:
        changes["events"] = events
    runs = [msgspec.structs.replace(run, **changes) for run in SIZES if run.apps <= up_to]
    if not runs:
        raise BenchError(
            f"the smallest size has {min(run.apps for run in SIZES)} apps, so nothing is left to measure",
            code="bench.too_small",
        )
    return runs


def bench_scale(runs: Sequence[Run], *, progress: Progress, plot: Path | None = None) -> Scale:
    """Measure each size in its own process, so that memory is by size.  After Ctrl-C return the sizes measured so far.

    Raises BenchError as `bench_optimizer` does.
    """
    from dorm_lab.bench.optimizer.plot import plot_scale

    for run in runs:
        check(run, plot)
    machine = this_machine()
    measured: list[Samples] = []
    for run in runs:
        measured.append(measure(run, progress))
        if measured[-1].interrupted:
            break
    interrupted = measured[-1].interrupted
    # The size during which it was interrupted may have no event yet.
    measured = [samples for samples in measured if samples.events]
    sizes = [(samples.run, figures(samples)) for samples in measured]
    if not sizes:
        raise BenchError("it was stopped before the first event", code="bench.stopped")
    report = Report(
        bench="optimizer-scale",
        machine=machine,
        settings={prefix(samples.run): settings(samples) for samples in measured}
        | ({"interrupted": True} if interrupted else {}),
        figures={
            f"{prefix(run)}_{name}": value
            for run, measured_figures in sizes
            for name, value in measured_figures.items()
        }
        | _together([samples for samples in measured if samples.solved]),
    )
    if plot is not None:
        plot_scale(measured, plot)
    return Scale(report, sizes, interrupted)


def _together(measured: Sequence[Samples]) -> dict[str, Figure]:
    """Return figures for the goals of small clusters: over all their problems, however many each size has."""
    if len(measured) < 2:
        return {}
    goal = goals(measured[0].run)
    gaps = [gap for samples in measured for gap in samples.gaps_to_exact()]
    times = [event.cpu_s for samples in measured for event in samples.events]
    return {
        f"{SMALL_SIZES}_event_p95_s": figure(percentile(times, 95), "s", goal.p95_s),
        f"{SMALL_SIZES}_gap_to_exact_mean": figure(sum(gaps) / len(gaps), "ratio", goal.to_exact_mean),
        f"{SMALL_SIZES}_gap_to_exact_p95": figure(percentile(gaps, 95), "ratio"),
        f"{SMALL_SIZES}_gap_to_exact_p99": figure(percentile(gaps, 99), "ratio", goal.to_exact_p99),
        f"{SMALL_SIZES}_gap_to_exact_max": figure(max(gaps), "ratio"),
        f"{SMALL_SIZES}_missed_n_min_count": figure(
            sum(samples.missed for samples in measured), "instances", goal.missed
        ),
        f"{SMALL_SIZES}_instances": figure(len(gaps), "instances"),
    }


def prefix(run: Run) -> str:
    """Return the prefix of the names of a size's figures."""
    return f"a{run.apps}_n{run.nodes}_s{run.shapes}"
