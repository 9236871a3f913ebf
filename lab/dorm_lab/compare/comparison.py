"""Several contenders on the same workloads: the outcome of each, with its spread over seeds, and ratios between them.

All runs of a comparison see the same apps arrive at the same moments, so they are compared moment by moment and app by app.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from events.quantities import SECOND
from replay.simulator.outcome import Run, mean, speed_ups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

HOUR_S = 3600.0
LEAST = 0.01
"""Utilization or fairness loss (both are sums of parts of 1) below which an hour's mean is negligible."""


class Spread(NamedTuple):
    """One figure over several seeds."""

    mean: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the spread of the values, or None if there are none; seeds without a value are left out."""
    known = [value for value in values if value is not None]
    return Spread(sum(known) / len(known), min(known), max(known)) if known else None


class Row(msgspec.Struct, frozen=True):
    """One contender.  Times in seconds; shares are parts of 1."""

    label: str
    completed: Spread | None
    """Apps."""
    completion_s: Spread | None
    """Mean over the completed apps."""
    median_completion_s: Spread | None
    p95_completion_s: Spread | None
    p99_completion_s: Spread | None
    wait_s: Spread | None
    makespan_s: Spread | None
    utilization: Spread | None
    """Mean over the window, as a sum over kinds of resources."""
    fairness_loss: Spread | None
    adjustments: Spread | None
    """Over the whole run."""
    adjustments_per_app: Spread | None
    container_hours: Spread | None
    """Hours of containers that each app held, on average: GPU hours if a container is a GPU."""
    adjustment_time_share: Spread | None
    worst_finish_ratio: Spread | None
    worst_long_finish_ratio: Spread | None
    unfair_share: Spread | None
    """Completed apps with ρ > 1.1: more than a tenth slower than with a fair part of the cluster."""
    late_share: Spread | None
    """Completed apps with ρ > 1.01: the first hundredth is the time of a decision and a start for any app."""
    speed_up: Spread | None
    """Mean over apps, against the comparison's base."""
    decision_s: Spread | None
    """Mean CPU time of a decision."""
    over_budget: int
    """Decisions of all runs that changed more apps than θ2 allows."""


class Comparison(msgspec.Struct, frozen=True):
    """Runs by label, one for each seed, in the same order for all."""

    name: str
    runs: dict[str, tuple[Run, ...]]
    base: str = ""
    """The label that the others are compared with; '' for none."""
    window_s: float | None = None
    """Seconds from a run's start over which utilization and fairness are averaged; never beyond the end of the first run with
    the same seed, so no run is measured on an empty cluster while another still works."""

    tasks: dict[str, float] = {}
    """Part by label, for contenders that share by tasks: the part of container time that launches take (`scenario.Tasks`)."""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.runs)

    @property
    def seeds(self) -> int:
        return min((len(runs) for runs in self.runs.values()), default=0)

    def row(self, label: str) -> Row:
        runs = self.runs[label]

        def over(figure: Callable[[Run], float | None]) -> Spread | None:
            return spread(figure(run) for run in runs)

        return Row(
            label=label,
            completed=over(lambda run: len(run.completions)),
            completion_s=over(lambda run: run.mean_completion_s),
            median_completion_s=over(lambda run: _percentile(list(run.completions.values()), 50)),
            p95_completion_s=over(lambda run: _percentile(list(run.completions.values()), 95)),
            p99_completion_s=over(lambda run: _percentile(list(run.completions.values()), 99)),
            wait_s=over(lambda run: run.mean_wait_s),
            makespan_s=over(lambda run: run.makespan_s),
            utilization=spread(self.window_means(label, "utilization")),
            fairness_loss=spread(self.window_means(label, "fairness_loss")),
            adjustments=over(lambda run: run.adjustments),
            adjustments_per_app=over(lambda run: mean(app.adjustments for app in run.apps)),
            container_hours=over(lambda run: mean(app.held_s / HOUR_S for app in run.apps)),
            adjustment_time_share=over(lambda run: run.adjustment_time_share),
            worst_finish_ratio=over(lambda run: run.worst_finish_ratio),
            worst_long_finish_ratio=over(lambda run: run.worst_long_finish_ratio),
            unfair_share=over(lambda run: run.unfair_share(1.1)),
            late_share=over(lambda run: run.unfair_share(1.01)),
            speed_up=self.speed_up(label),
            decision_s=over(lambda run: mean(run.decided_s)),
            over_budget=sum(run.decisions_over_budget for run in runs),
        )

    def window_of(self, seed: int) -> float:
        """Return the window in seconds from the start, for the runs with this seed (by index)."""
        first = min((runs[seed].end - runs[seed].begin) / SECOND for runs in self.runs.values())
        return first if self.window_s is None else min(self.window_s, first)

    def window_means(self, label: str, figure: str) -> list[float | None]:
        """Return the means of `utilization` or `fairness_loss`, one for each seed."""
        return [
            mean(getattr(sample, figure) for sample in run.during(0.0, self.window_of(seed)))
            for seed, run in enumerate(self.runs[label])
        ]

    def speed_up(self, label: str, base: str | None = None) -> Spread | None:
        """Return the mean over apps of how much faster they complete than in the base's run of the same seed."""
        base = self.base if base is None else base
        if base not in self.runs:
            return None
        pairs = zip(self.runs[label], self.runs[base], strict=False)
        return spread(mean(speed_ups(run, other).values()) for run, other in pairs)

    def ratio_of_means(self, label: str, base: str, figure: str) -> Spread | None:
        """Return the mean of a figure over the window and all seeds, as a multiple of the base's; low and high are those of
        single seeds.  A mean of ratios would be arbitrary if one seed's base is near 0."""
        own, other = self.window_means(label, figure), self.window_means(base, figure)
        above, below = mean(v for v in own if v is not None), mean(v for v in other if v is not None)
        if above is None or not below:
            return None
        each = [a / b for a, b in zip(own, other, strict=False) if a is not None and b]
        return Spread(above / below, min([*each, above / below]), max([*each, above / below]))

    def best_hour(self, label: str, base: str, figure: str) -> Spread | None:
        """Return the largest ratio of the two means over one hour, among hours in which both are at least `LEAST`.

        An hour and a least mean, since at a single moment one may be near 0, and the ratio arbitrarily large."""
        best = []
        for seed, (run, other) in enumerate(zip(self.runs[label], self.runs[base], strict=False)):
            own, base_hours = (hourly(run_, figure, self.window_of(seed)) for run_ in (run, other))
            size = min(len(own), len(base_hours))
            ratios = [
                a / b
                for a, b in zip(own[:size].tolist(), base_hours[:size].tolist(), strict=True)
                if min(a, b) >= LEAST
            ]
            best.append(max(ratios, default=None))
        return spread(best)

    def curve(self, label: str, figure: str, steps: int = 240) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return hours, and one row of values for each seed: means over equal parts of the window."""
        runs = self.runs[label]
        length = max(self.window_of(seed) for seed in range(len(runs)))
        every = max((run.every_s for run in runs), default=1.0)
        parts = max(1, min(steps, int(length / every)))
        hours = (np.arange(parts) + 0.5) * length / parts / HOUR_S
        return hours, np.array([_binned(run, figure, length, parts) for run in runs])


def hourly(run: Run, figure: str, window_s: float) -> NDArray[np.float64]:
    """Return the mean of each whole hour from the start; 0 for an hour without samples."""
    return _binned(run, figure, max(1.0, window_s // HOUR_S) * HOUR_S, max(1, int(window_s // HOUR_S)))


def _binned(run: Run, figure: str, length_s: float, parts: int) -> NDArray[np.float64]:
    """Return means over equal parts of a time from the start; after a run's end nothing is held and nothing lost."""
    if not run.samples:
        return np.zeros(parts)
    at = np.array([sample.at - run.begin for sample in run.samples], np.float64) / SECOND
    values = np.array([getattr(sample, figure) for sample in run.samples], np.float64)
    place = (at / length_s * parts).astype(np.int64)
    inside = place < parts
    total = np.bincount(place[inside], weights=values[inside], minlength=parts)
    size = np.bincount(place[inside], minlength=parts)
    return np.divide(total, size, out=np.zeros(parts), where=size > 0)


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(np.array(values), percent)) if values else None
