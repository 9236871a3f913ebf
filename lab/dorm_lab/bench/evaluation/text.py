"""The text of an evaluation's report.  Every statement about an outcome is computed from the runs; only how the policies work,
and published results of others, are written here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dorm_lab.bench.evaluation.crash_loop import block as crash_loop_block
from dorm_lab.bench.evaluation.figures import mean_restarts, workload_6
from dorm_lab.bench.evaluation.parts import HEADLINE, SPEED, TUNED
from dorm_lab.bench.evaluation.sweeps import block as sweep_block
from dorm_lab.compare import report
from dorm_lab.compare.report import Bullets, Figures, Heading, Table, Text, percent, plain, summary, times
from dorm_lab.compare.yardstick import DIFFERENCES, PUBLISHED
from events.instants import table_seconds as seconds
from replay.simulator.outcome import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dorm.bench.report import Figure, Report
    from dorm_lab.bench.evaluation.paper import Variation
    from dorm_lab.bench.evaluation.parts import Part
    from dorm_lab.bench.evaluation.plan import Plan
    from dorm_lab.compare.comparison import Comparison, Row
    from dorm_lab.compare.report import Block

LARGE = 10.0
"""A mean speed-up too large to come from more containers alone."""
LEVEL = 0.01
"""Two means closer than this part of the larger are called level."""


def blocks(wanted: Plan, comparisons: Mapping[str, Comparison], done: Report) -> list[Block]:
    """Return the whole report."""
    paper = comparisons[wanted.paper.key]
    made: list[Block] = [
        Heading("Evaluation of Dorm", 1),
        Text(
            "Every run is a simulation in virtual time by the core that runs live: the same fold, the same decisions, "
            f"the same policies. Dorm's figures are those of {HEADLINE} (θ1/θ2) unless another setting is named. With "
            "several seeds, a figure is their mean, with the lowest and the highest in brackets."
        ),
        Text("`make evaluation` writes this folder again, with `TRACES=DIR` for the parts that need traces."),
        Heading("Goals and figures"),
        _goals(done.figures),
    ]
    made += _part(wanted.paper, paper)
    made += _sensitivity(wanted.variations, comparisons)
    if wanted.crash_loop is not None:
        made += crash_loop_block(wanted.crash_loop, comparisons[wanted.crash_loop.key])
    for part in wanted.traces:
        made += _part(part, comparisons[part.key])
        if part.key in ("pollux", TUNED):
            made += _yardstick(part, comparisons[part.key])
    for sweep in wanted.sweeps:
        made += sweep_block(sweep, comparisons[sweep.part.key])
    made += _adjustments(wanted, comparisons)
    made += _finish_times(wanted, comparisons)
    if wanted.missing or wanted.left_out:
        made.append(Heading("Not run"))
    if wanted.missing:
        made.append(Text(f"Traces that were not given: {', '.join(wanted.missing)}."))
    if wanted.left_out:
        made.append(Text(f"Left out (`--without`): {'; '.join(wanted.left_out)}."))
    return made


def _goals(figures: Mapping[str, Figure]) -> Table:
    reached = {None: "", True: "yes", False: "no"}
    rows = (
        (
            name,
            f"{value.value:,.4g}" if value.value < 1000 else f"{value.value:,.0f}",
            value.unit,
            value.goal or "",
            reached[value.reached],
        )
        for name, value in figures.items()
    )
    return Table(("figure", "value", "unit", "goal", "reached"), tuple(rows))


def _part(part: Part, comparison: Comparison) -> Iterator[Block]:
    yield Heading(part.title)
    yield Bullets(part.about)
    yield report.table(comparison)
    yield from _queue(comparison)
    yield Heading("Ahead or behind", 3)
    verdicts = list(_verdicts(comparison))
    yield Table(
        ("against", "utilization", "fairness loss", "mean completion"),
        tuple((label, *(verdict.text for verdict in row)) for label, row in verdicts),
    )
    whys = [verdict.why for _, row in verdicts for verdict in row if verdict.why]
    if whys:
        yield Bullets(tuple(whys))
    yield Figures(comparison, part.key)


def _queue(comparison: Comparison) -> Iterator[Block]:
    """Warn the reader that a few short apps dominate a mean of ratios."""
    row = comparison.row(_headline(comparison))
    base = comparison.row(comparison.base) if comparison.base in comparison.runs else None
    if base is None or row.speed_up is None or row.speed_up.mean < LARGE or base.wait_s is None or row.wait_s is None:
        return
    yield Text(
        f"Speed-ups as large as {times(row.speed_up.mean)} come from short apps that wait behind others: the mean wait "
        f"is {seconds(base.wait_s.mean)} under {base.label} and {seconds(row.wait_s.mean)} under {row.label}. The ratio of "
        "mean completion times says more."
    )


def _headline(comparison: Comparison) -> str:
    """Return the label whose figures represent Dorm: `dorm` chooses no batch sizes."""
    return HEADLINE if HEADLINE in comparison.runs else SPEED


class Verdict(NamedTuple):
    """The verdict on one figure against one other contender."""

    text: str
    why: str
    """A sentence if Dorm is not ahead, '' if it is."""


def _verdicts(comparison: Comparison) -> Iterator[tuple[str, list[Verdict]]]:
    own = comparison.row(_headline(comparison))
    for label in comparison.labels:
        if label.startswith("dorm"):
            continue
        rival = comparison.row(label)
        yield (
            label,
            [
                _verdict(comparison, figure, own, rival, more_is_better=figure == "utilization")
                for figure in ("utilization", "fairness_loss", "completion_s")
            ],
        )


def _verdict(comparison: Comparison, figure: str, own: Row, rival: Row, *, more_is_better: bool) -> Verdict:
    a, b = getattr(own, figure), getattr(rival, figure)
    if a is None or b is None:
        return Verdict("not measured", "")
    if abs(a.mean - b.mean) <= LEVEL * max(abs(a.mean), abs(b.mean)):
        return Verdict("level", "")
    ahead = (a.mean > b.mean) == more_is_better
    low, high = sorted((a.mean, b.mean))
    amount = f"{high / low:.2f}×" if low > 0 else f"{high:.3g} to 0"
    if ahead:
        return Verdict(f"ahead, {amount}", "")
    name = {"utilization": "utilization", "fairness_loss": "fairness loss", "completion_s": "mean completion"}[figure]
    return Verdict(f"behind, {amount}", f"Behind {rival.label} in {name}: {_why(comparison, figure, own, rival)}")


def _why(comparison: Comparison, figure: str, own: Row, rival: Row) -> str:
    """Explain how the other policy works, if that causes the difference."""
    share = comparison.tasks.get(rival.label, 0.0)
    if figure == "utilization" and share and own.utilization and rival.utilization:
        useful = rival.utilization.mean * (1 - share)
        return (
            f"its slots count as used while they launch tasks, which takes {percent(share)} of their time. Without "
            f"launches, its {plain(rival.utilization.mean)} become {plain(useful)}, against "
            f"{plain(own.utilization.mean)}."
        )
    reasons = {
        ("utilization", "static"): "fixed partitions keep apps for longer, so more of them hold resources at the same time.",
        ("utilization", "app-level"): "free room goes to the present apps: none waits for a fairer "
        "share, and none is stopped for it. Dorm gives up this utilization for less fairness loss.",
        ("utilization", "tiresias"): "it stops and moves whole apps at every decision, without a limit such as θ2, so "
        "holes are filled sooner.",
        ("utilization", "optimus"): "it resizes every app at every decision, without a limit such as θ2, so holes are "
        "filled sooner; the column of adjustments shows the time lost to restarts.",
        ("fairness_loss", "task-level"): "each decision may give every slot to another app, at no cost but "
        "launches of tasks; θ2 lets Dorm change few apps at once.",
        ("fairness_loss", "optimus"): "it resizes every app at every decision, and apps with equal gains get equal shares; θ2 "
        "lets Dorm change few apps at once.",
        ("fairness_loss", "tiresias"): "least attained service evens out the apps' past service; Dorm stops no app "
        "that runs undisturbed.",
        ("completion_s", "tiresias"): "it stops apps after long service in favor of others, which finishes short apps "
        "early; Dorm stops no app that runs undisturbed, whatever its past service.",
        ("completion_s", "optimus"): "it knows how much work each app has left and how fast it would be, and gives "
        "containers to the apps that gain most time; Dorm decides by utilization and fair shares and knows neither.",
        ("completion_s", "dorm-speed"): "it knows how much work each app has left and how fast it would be, and gives "
        "containers to the apps that finish sooner with them.",
        ("utilization", "dorm-speed"): "it may change as many apps, and gives room to apps that scale.",
        ("fairness_loss", "dorm-speed"): "there, an app is owed only containers that make it faster.",
        ("completion_s", "srtf"): "it knows how much work each app has left, and stops long apps, which then wait, for short "
        "ones; Dorm stops no app that runs undisturbed.",
        ("fairness_loss", "drf"): "each of its decisions follows fair shares alone; θ2 lets Dorm change few apps at once.",
        ("fairness_loss", "market"): "with equal budgets, apps buy about equal shares at every decision; θ2 lets Dorm change "
        "few apps at once.",
        ("completion_s", "app-level"): "apps keep their containers until they end, so early apps end early, and later "
        "apps wait longer instead (see the worst ρ).",
        ("completion_s", "task-level"): "its adjustments are free, so it follows every arrival and departure at once.",
    }  # fmt: skip
    reason = reasons.get((figure, rival.label))
    adjusted = f"Adjustments there: {summary(rival.adjustments)}, here: {summary(own.adjustments)}."
    return f"likely because {reason} {adjusted}" if reason else f"the runs show no single cause. {adjusted}"


def _sensitivity(variations: tuple[Variation, ...], comparisons: Mapping[str, Comparison]) -> Iterator[Block]:
    if not variations:
        return
    yield Heading("Sensitivity to the assumptions")
    yield Text(
        "Each row changes one thing in the paper's workload and runs it again, on fewer seeds. Ratios are against "
        "static in the same row; the contender is Dorm unless a row names another."
    )
    rows = []
    for variation in variations:
        comparison = comparisons[variation.part.key]
        row, base = comparison.row(variation.label), comparison.base
        rows.append(
            (
                variation.name,
                summary(comparison.best_hour(variation.label, base, "utilization"), times),
                summary(comparison.ratio_of_means(variation.label, base, "utilization"), times),
                summary(comparison.ratio_of_means(base, variation.label, "fairness_loss"), times),
                summary(row.speed_up, times),
                summary(row.completion_s, seconds),
                summary(row.adjustment_time_share, percent),
            )
        )
    yield Table(
        (
            "changed",
            "utilization, best hour",
            "utilization, mean",
            "fairness loss, ÷",
            "speed-up",
            "completion",
            "lost",
        ),
        tuple(rows),
    )


def _yardstick(part: Part, comparison: Comparison) -> Iterator[Block]:
    yield Heading("Compared with published results for workload 6", 3)
    six = workload_6(part, comparison)
    if not six:
        yield Text("It was not run.")
        return
    rows = []
    for label, run in six.items():
        published = PUBLISHED.get(label)
        here = run.mean_completion_s
        rows.append(
            (
                label,
                seconds(here) if here is not None else "-",
                f"{published:,.2f} s" if published else "",
                f"{100 * (here / published - 1):+.1f} %" if published and here is not None else "",
                seconds(run.makespan_s) if run.makespan_s is not None else "-",
                plain(restarts) if (restarts := mean_restarts(run)) is not None else "-",
                percent(share) if (share := run.adjustment_time_share) is not None else "-",
            )
        )
    if part.key == TUNED:
        rows.append(("pollux, its public simulator when run again", "", "2,477.50 s", "", "", "", ""))
    yield Table(
        (
            "contender",
            "mean completion here",
            "published",
            "difference",
            "makespan",
            "restarts per app",
            "lost to them",
        ),
        tuple(rows),
    )
    yield Text("Differences between the two models:")
    yield Bullets(DIFFERENCES)
    yield Text("All eight, mean completion:")
    yield Table(
        ("workload", *comparison.labels),
        tuple(
            (
                name,
                *(
                    seconds(done) if (done := runs[place].mean_completion_s) else "-"
                    for runs in comparison.runs.values()
                ),
            )
            for place, name in enumerate(part.seeds)
        ),
    )


def _adjustments(wanted: Plan, comparisons: Mapping[str, Comparison]) -> Iterator[Block]:
    yield Heading("Time lost to adjustments")
    yield Text(
        "The part of all container time in which apps stood still, or repeated work, because of a decision. On Sia's "
        "own workloads, Sia (SOSP 2023) loses 12.1 % of the allocated time to restarts, and Gavel (OSDI 2020) 37 to 44 "
        "%, according to their public simulators."
    )
    shares = []
    for part in (wanted.paper, *(v.part for v in wanted.variations if "tasks" not in v.part.key), *wanted.traces):
        comparison = comparisons[part.key]
        for label in comparison.labels:
            share = comparison.row(label).adjustment_time_share
            if share is not None and share.high > 0 and (part in wanted.traces or label == HEADLINE):
                adjusted = comparison.row(label).adjustments
                shares.append((f"{part.title}: {label}", summary(share, percent), summary(adjusted)))
    titles = {variation.part.title: variation.name for variation in wanted.variations}
    rows = tuple((_named(name, titles), share, adjusted) for name, share, adjusted in shares)
    yield Table(("run", "lost", "adjustments"), rows)


def _named(text: str, titles: Mapping[str, str]) -> str:
    title, _, label = text.partition(": ")
    return f"{titles.get(title, title)}: {label}"


def _finish_times(wanted: Plan, comparisons: Mapping[str, Comparison]) -> Iterator[Block]:
    yield Heading("Finish-time fairness")
    yield Text(
        "ρ is how long an app took, divided by how long it would have taken with 1/N of the cluster to itself, where N "
        "is the mean number of apps in its time (Themis, NSDI 2020). Published worst ratios, and unfair shares (ρ > 1), "
        "on Sia's workloads: Sia 1.2 (< 0.3 %), Shockwave 3.3 (14 %), Pollux 4.6 (28 %), Gavel 27.8 (15 %)."
    )
    rows = []
    for part in (wanted.paper, *wanted.traces):
        comparison = comparisons[part.key]
        for label in comparison.labels:
            row = comparison.row(label)
            rows.append(
                (
                    f"{part.title}: {label}",
                    summary(row.worst_finish_ratio),
                    summary(row.worst_long_finish_ratio),
                    summary(row.late_share, percent),
                    summary(row.unfair_share, percent),
                )
            )
    yield Table(("run", "worst ρ", "worst ρ, long apps", "ρ > 1.01", "ρ > 1.1"), tuple(rows))
    yield Text(_about_rho(comparisons[wanted.paper.key]))
    if wanted.traces:
        yield Text(
            "On traces, decisions come in rounds. A short app's ρ contains its whole wait for a round, and a preempted app's "
            "its stops; 1/N of a cluster has neither. Long apps are those that would take at least "
            f"{LONG_S / 60:.0f} minutes there."
        )


def _about_rho(comparison: Comparison) -> str:
    own, base = comparison.row(HEADLINE), comparison.row(comparison.base)
    if own.worst_finish_ratio is None or base.worst_finish_ratio is None:
        return "On the paper's workload it was not measured."
    return (
        f"On the paper's workload Dorm's worst is {plain(own.worst_finish_ratio.mean)}, static's "
        f"{plain(base.worst_finish_ratio.mean)}. If an app's n_max is less than its fair part of an idle cluster, "
        "its ρ can't be much below 1, and each start and each rounding to whole containers raises it. Weights affect "
        "every share, but no ρ. The ρ of task-level sharing includes launches of tasks, which an app alone would not need."
    )
