"""The outcome of a run, simulated or live: plain data that can be sent to another process, and its means.

Symbols as in the Dorm paper (arXiv 1704.06738): utilization U, fairness loss F, adjustment overhead.
Finish-time fairness is ρ = T_shared / T_isolated (Themis, NSDI 2020, §3; see `finish_times`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable


LONG_S = 600.0
"""An app that would take this long with a fair part of the cluster is long: rounds and starts weigh little in its ρ."""


class AppRun(msgspec.Struct, frozen=True, gc=False):
    """One accepted app.  Times are log times (UTC ns), 0 for events that did not happen in this run."""

    app: str
    """Id of the app."""
    name: str
    submitted: int
    started: int
    """Time at which all containers of its first generation had started."""
    ended: int
    how: Literal["", "completed", "failed", "cancelled"]
    """'' if it had not ended at the end of the measurement."""
    adjustments: int
    """Decisions that changed it while it ran, including stops."""
    held_s: float
    """Container-seconds: the containers that it held, over time, from each decision on."""
    lost_s: float
    """Container-seconds of these lost to adjustments: held from the decision until the app worked again, and work that was
    done a second time.  Neither a first start nor a restart after a failure counts."""
    finish_ratio: float | None = None
    """ρ, of completed apps; None if the isolated time is unknown."""

    @property
    def completion_s(self) -> float | None:
        """Seconds from submission to end, for a completed app."""
        return (self.ended - self.submitted) / SECOND if self.how == "completed" else None

    @property
    def wait_s(self) -> float | None:
        """Seconds from submission to the first start; None if it never started."""
        return max(0, self.started - self.submitted) / SECOND if self.started else None


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The cluster at one moment of the grid."""

    at: int
    """UTC ns."""
    utilization: float
    """U as decided: the sum over kinds of resources, so up to `Run.kinds`."""
    fairness_loss: float
    """F over the live apps that an empty cluster could run."""
    running: int
    """Apps that have containers."""
    waiting: int
    """Apps that have none."""


class DecisionRun(msgspec.Struct, frozen=True, gc=False):
    """One decision, counted from the log's facts alone and not from the policy's own figures."""

    at: int
    """UTC ns."""
    running: int
    """|P|: apps that had containers before."""
    changed: int
    """Number of them that it changed, without those that had to change (`forced`)."""
    budget: int | None
    """⌈θ2·|P|⌉, at most the absolute cap; None for a policy without one."""
    forced: int = 0
    """Changed apps that could not stay: on a node that is lost or drained, or with bounds that no longer admit their count."""
    started: int = 0
    """Apps that had no containers and got some."""


class Run(msgspec.Struct, frozen=True):
    """Everything that was measured.  Properties are None if nothing was measured for them."""

    begin: int
    end: int
    every_s: float
    kinds: int
    """Kinds of resources, which bound the utilization."""
    apps: tuple[AppRun, ...]
    """Runs of apps in the order of their acceptance."""
    samples: tuple[Sample, ...]
    decisions: tuple[DecisionRun, ...]
    rejected: int = 0
    """Submissions that were refused."""
    decided_s: tuple[float, ...] = ()
    """CPU seconds of each decision on the machine that ran it; empty if that was not measured."""

    @property
    def completions(self) -> dict[str, float]:
        """Seconds from submission to completion, by the name of each app that completed."""
        return {app.name: done for app in self.apps if (done := app.completion_s) is not None}

    @property
    def mean_completion_s(self) -> float | None:
        return mean(self.completions.values())

    @property
    def mean_wait_s(self) -> float | None:
        return mean(wait for app in self.apps if (wait := app.wait_s) is not None)

    @property
    def makespan_s(self) -> float | None:
        """Seconds from the first submission to the last end."""
        ends = [app.ended for app in self.apps if app.ended]
        return (max(ends) - min(app.submitted for app in self.apps)) / SECOND if ends else None

    @property
    def mean_utilization(self) -> float | None:
        return mean(sample.utilization for sample in self.samples)

    @property
    def mean_fairness_loss(self) -> float | None:
        return mean(sample.fairness_loss for sample in self.samples)

    @property
    def adjustment_time_share(self) -> float | None:
        """The part of all container-seconds held that adjustments lost."""
        held = sum(app.held_s for app in self.apps)
        return sum(app.lost_s for app in self.apps) / held if held else None

    @property
    def adjustments(self) -> int:
        return sum(app.adjustments for app in self.apps)

    @property
    def worst_finish_ratio(self) -> float | None:
        return max(self._ratios, default=None)

    @property
    def worst_long_finish_ratio(self) -> float | None:
        """The worst ρ of the long apps (`LONG_S`)."""
        ratios = ((app.finish_ratio, app.completion_s) for app in self.apps)
        return max(
            (ratio for ratio, done in ratios if ratio and done is not None and done / ratio >= LONG_S), default=None
        )

    def unfair_share(self, above: float = 1.0) -> float | None:
        """Return the part of the completed apps whose ρ is above this."""
        return mean(float(ratio > above) for ratio in self._ratios)

    @property
    def decisions_over_budget(self) -> int:
        """Decisions that changed more apps than θ2 allows; any is an error of the policy."""
        return sum(
            1 for decision in self.decisions if decision.budget is not None and decision.changed > decision.budget
        )

    @property
    def _ratios(self) -> list[float]:
        return [app.finish_ratio for app in self.apps if app.finish_ratio is not None]

    def during(self, from_s: float, to_s: float) -> tuple[Sample, ...]:
        """Return the samples from `from_s` up to `to_s` (exclusive), in seconds from the start."""
        low, high = self.begin + int(from_s * SECOND), self.begin + int(to_s * SECOND)
        return tuple(sample for sample in self.samples if low <= sample.at < high)


def mean(values: Iterable[float]) -> float | None:
    """Return the mean, None without values."""
    values_ = list(values)
    return sum(values_) / len(values_) if values_ else None


def speed_ups(run: Run, base: Run) -> dict[str, float]:
    """Return how much faster each app completed than in `base`, by name, for apps that completed in both: the completion time
    there over the one here (Dorm paper, its figure of speed-ups)."""
    there = base.completions
    return {name: there[name] / here for name, here in run.completions.items() if name in there and here > 0}
