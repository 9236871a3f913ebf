"""The figures of an evaluation, with the goals that were set before it was run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.bench.report import Figure, figure
from dorm_lab.bench.evaluation.crash_loop import cost_of_headline
from dorm_lab.bench.evaluation.parts import EVENTS, HEADLINE, RIVALS, SPEED, TUNED, WIDE
from dorm_lab.compare.yardstick import PUBLISHED
from replay.simulator.outcome import mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dorm_lab.bench.evaluation.parts import Part
    from dorm_lab.bench.evaluation.plan import Plan
    from dorm_lab.compare.comparison import Comparison, Spread
    from replay.simulator.outcome import Run

WORKLOAD_6 = "workload-6"
CRASH_LOOP_GOAL = "<= 3"
"""One for the arrival of the app that fails, and two for all of its failures."""
RESTART_GOAL, LIVE_GOAL = "<= 0.05", "<= 0.01"


def figures_of(wanted: Plan, comparisons: Mapping[str, Comparison]) -> dict[str, Figure]:
    """Return figures by name, without those of parts that were not run.  Raises BenchError for a value that is not finite."""
    figures: dict[str, Figure | None] = {}
    figures.update(_paper(comparisons[wanted.paper.key]))
    figures["over_budget_count"] = figure(sum(_over_budget(comparisons)), "count", "<= 0")
    for variation in wanted.variations:
        share = comparisons[variation.part.key].row(variation.label).adjustment_time_share
        if variation.name == "restart of 30 s":
            figures["adjustment_time_share"] = _ratio(share, RESTART_GOAL)
        elif variation.name == "live resizing":
            figures["adjustment_time_share_live"] = _ratio(share, LIVE_GOAL)
    if wanted.crash_loop is not None:
        cost = cost_of_headline(wanted.crash_loop, comparisons[wanted.crash_loop.key])
        figures["crash_loop_restarts_count"] = figure(cost.restarts, "count", CRASH_LOOP_GOAL)
        figures["crash_loop_useful_work_share"] = figure(cost.useful, "ratio")
    for part in wanted.traces:
        of_part = {TUNED: _tuned, EVENTS: _events}.get(part.key, _trace)
        figures.update(of_part(part, comparisons[part.key]))
    return {name: value for name, value in figures.items() if value is not None}


def _paper(comparison: Comparison) -> Iterator[tuple[str, Figure | None]]:
    base = comparison.base
    row = comparison.row(HEADLINE)
    yield "utilization_ratio_max", _ratio(comparison.best_hour(HEADLINE, base, "utilization"), ">= 2.32")
    yield "utilization_ratio_mean", _ratio(comparison.ratio_of_means(HEADLINE, base, "utilization"))
    yield "fairness_loss_ratio_max", _ratio(comparison.best_hour(base, HEADLINE, "fairness_loss"))
    yield "fairness_loss_ratio_mean", _ratio(comparison.ratio_of_means(base, HEADLINE, "fairness_loss"), ">= 1.52")
    yield "speedup_mean", _ratio(row.speed_up, ">= 2.72")
    yield "adjustment_time_share_docker", _ratio(row.adjustment_time_share, RESTART_GOAL)
    yield "mean_completion_s", _seconds(row.completion_s)
    yield "worst_finish_ratio", _ratio(row.worst_finish_ratio)
    yield "unfair_by_a_hundredth_share", _ratio(row.late_share)
    yield "unfair_share", _ratio(row.unfair_share)


def _over_budget(comparisons: Mapping[str, Comparison]) -> Iterator[int]:
    """Yield counts of the contenders for which θ2 counts changed apps: for `dorm-speed` it counts full restarts."""
    for comparison in comparisons.values():
        counting = (label for label in comparison.labels if not label.startswith(SPEED))
        yield from (comparison.row(label).over_budget for label in counting)


def _trace(part: Part, comparison: Comparison) -> Iterator[tuple[str, Figure | None]]:
    key, row = part.key, comparison.row(HEADLINE)
    yield f"{key}_adjustment_time_share", _ratio(row.adjustment_time_share, RESTART_GOAL)
    yield f"{key}_worst_finish_ratio", _ratio(row.worst_finish_ratio)
    yield f"{key}_unfair_share", _ratio(row.unfair_share)
    yield f"{key}_mean_completion_s", _seconds(row.completion_s)
    if key != "pollux":
        base = comparison.base
        yield f"{key}_utilization_ratio_mean", _ratio(comparison.ratio_of_means(HEADLINE, base, "utilization"))
        yield f"{key}_fairness_loss_ratio_mean", _ratio(comparison.ratio_of_means(base, HEADLINE, "fairness_loss"))
        yield f"{key}_speedup_mean", _ratio(row.speed_up)
        return
    live = f"{HEADLINE}, live"
    if live in comparison.runs:
        yield "pollux_live_adjustment_time_share", _ratio(comparison.row(live).adjustment_time_share, LIVE_GOAL)
    six = workload_6(part, comparison)
    for label, name in (
        (HEADLINE, ""),
        (WIDE, "wide_"),
        ("tiresias", "tiresias_"),
        ("optimus", "optimus_"),
        (SPEED, "speed_"),
        (f"{SPEED}, live", "speed_live_"),
        *((name, f"{name}_") for name in RIVALS),
    ):
        if label in six and (done := six[label].mean_completion_s) is not None:
            goal = f"<= {PUBLISHED['tiresias']:g}" if label == HEADLINE else None
            yield f"workload6_{name}mean_completion_s", figure(done, "s", goal)
    if HEADLINE in six and (share := six[HEADLINE].adjustment_time_share) is not None:
        yield "workload6_adjustment_time_share", figure(share, "ratio", RESTART_GOAL)


def _tuned(part: Part, comparison: Comparison) -> Iterator[tuple[str, Figure | None]]:
    for label, run in workload_6(part, comparison).items():
        name = label.replace(", ", "_").replace("-", "_")
        goal = f"<= {PUBLISHED['pollux']:g}" if label == SPEED else None
        if (done := run.mean_completion_s) is not None:
            yield f"workload6_tuned_{name}_mean_completion_s", figure(done, "s", goal)


def _events(part: Part, comparison: Comparison) -> Iterator[tuple[str, Figure | None]]:
    restarts, live = comparison.row(SPEED), comparison.row(f"{SPEED}, live")
    yield "events_adjustment_time_share", _ratio(restarts.adjustment_time_share, RESTART_GOAL)
    yield "events_restarts_per_app", _plain(restarts.adjustments_per_app, "restarts", "<= 3")
    yield "events_worst_finish_ratio", _ratio(restarts.worst_finish_ratio, "<= 1.5")
    yield "events_live_worst_finish_ratio", _ratio(live.worst_finish_ratio, "<= 1.5")
    if restarts.completion_s is not None and live.completion_s is not None:
        gain = 1 - live.completion_s.mean / restarts.completion_s.mean
        yield "events_live_gain", figure(gain, "ratio", ">= 0.15")


def workload_6(part: Part, comparison: Comparison) -> dict[str, Run]:
    """Return the yardstick's runs by label; none if it was not run whole."""
    if WORKLOAD_6 not in part.seeds:
        return {}
    place = part.seeds.index(WORKLOAD_6)
    return {label: runs[place] for label, runs in comparison.runs.items()}


def mean_restarts(run: Run) -> float | None:
    """Return the mean adjustments per app."""
    return mean(app.adjustments for app in run.apps)


def _ratio(spread: Spread | None, goal: str | None = None) -> Figure | None:
    """Return the mean over seeds as a figure."""
    return None if spread is None else figure(spread.mean, "ratio", goal)


def _plain(spread: Spread | None, unit: str, goal: str) -> Figure | None:
    return None if spread is None else figure(spread.mean, unit, goal)


def _seconds(spread: Spread | None) -> Figure | None:
    return None if spread is None else figure(spread.mean, "s")
