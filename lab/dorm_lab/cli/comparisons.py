"""A comparison of simulated runs as a table and as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from dorm.cli.output import Column, Format, console, counted, print_table
from dorm.policies.registry import policy
from replay.simulator.contenders import BY_TIME, LONG_ROUNDS_S, ROUND_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm_lab.compare.comparison import Comparison, Row, Spread
    from replay.simulator.contenders import Contender
    from replay.simulator.outcome import Run
    from replay.simulator.workload import Workload

_UNITS = (("d", 86_400.0), ("h", 3600.0), ("m", 60.0))
_MANY_UNITS = 3
"""A time is shown in the largest unit that it holds at least this many times."""
_MOST_NAMED = 3
_LONGEST_REASON = 120
_EQUAL = 1e-3
"""Figures of several seeds that differ by at most this part are shown as one."""


class _Figure(NamedTuple):
    heading: str
    field: str
    kind: str
    """`time` for seconds, `share` for parts of 1, `number`, `ratio` for multiples."""


_FIGURES = (
    _Figure("COMPLETION", "completion_s", "time"),
    _Figure("P95", "p95_completion_s", "time"),
    _Figure("WAIT", "wait_s", "time"),
    _Figure("MAKESPAN", "makespan_s", "time"),
    _Figure("UTILIZATION", "utilization", "number"),
    _Figure("FAIRNESS LOSS", "fairness_loss", "number"),
    _Figure("ADJUSTED", "adjustments", "number"),
    _Figure("TIME LOST", "adjustment_time_share", "share"),
    _Figure("WORST ρ", "worst_finish_ratio", "number"),
    _Figure("UNFAIR", "unfair_share", "share"),
    _Figure("SPEED-UP", "speed_up", "ratio"),
)


def show_comparison(
    comparison: Comparison, contenders: Sequence[Contender], output: Format, *, apps: int, in_rounds: bool
) -> None:
    """Print one line for each contender: means over the seeds, and their spread; below, notes for reading it.  `apps` is the
    number of apps of one workload."""
    rows = [comparison.row(label) for label in comparison.labels]
    columns: list[Column] = [("POLICY", "label"), ("DONE", "completed")]
    drawn: list[dict[str, Any]] = [{"label": row.label, "completed": _done(comparison, row, apps)} for row in rows]
    for figure in _FIGURES:
        if figure.field == "speed_up" and (len(rows) == 1 or not comparison.base):
            continue
        values = [getattr(row, figure.field) for row in rows]
        unit, length = _unit(values) if figure.kind == "time" else ("", 1.0)
        columns.append((f"{figure.heading}{f' {unit}' if unit else ''}", figure.field))
        for line, value in zip(drawn, values, strict=True):
            line[figure.field] = _spread(value, length, figure.kind, whole=output is Format.wide)
    for line in drawn:
        if line["label"] in comparison.tasks:
            line["adjustment_time_share"] = f"{_number(comparison.tasks[line['label']], 1.0, 'share')} (tasks)"
    print_table(drawn, columns)
    console.print()
    for note in _notes(comparison, contenders, output, in_rounds=in_rounds):
        console.print(Text(note, "dim"))


def _notes(comparison: Comparison, contenders: Sequence[Contender], output: Format, *, in_rounds: bool) -> list[str]:
    hours = [comparison.window_of(seed) / 3600 for seed in range(comparison.seeds)]
    until = "the end" if len(contenders) == 1 else "the first of them was done"
    notes = [f"utilization and fairness loss: means over the first {sum(hours) / len(hours):.3g} h, until {until}"]
    if comparison.base and len(contenders) > 1:
        notes.append(f"speed-up: how much faster an app is done than under {comparison.base}, on average")
    for contender in contenders:
        count = policy(contender.policy).check_params({}).get("count")
        if count is not None and not {"count", "counts"} & contender.params.keys():
            notes.append(f"{contender.label}: the same number of containers for each app ({count})")
    timed = [contender for contender in contenders if contender.policy in BY_TIME and not in_rounds]
    for every_s in sorted({LONG_ROUNDS_S.get(contender.policy, ROUND_S) for contender in timed}):
        labels = ", ".join(run_.label for run_ in timed if LONG_ROUNDS_S.get(run_.policy, ROUND_S) == every_s)
        notes.append(f"{labels}: asked every {every_s:g} s, the others when something happens; see --rounds")
    if by_tasks := [contender.label for contender in contenders if contender.label in comparison.tasks]:
        notes.append(f"{', '.join(by_tasks)}: what launches of tasks take is in the utilization")
    if comparison.seeds > 1:
        spread = "lowest to highest" if output is Format.wide else "± half of their range"
        notes.append(f"all figures: means of {comparison.seeds} seeds, {spread}")
    return notes


def _done(comparison: Comparison, row: Row, apps: int) -> str:
    """Return completed apps of all."""
    runs = comparison.runs[row.label]
    return f"{sum(len(run.completions) for run in runs)}/{apps * len(runs)}"


def _unit(spreads: Sequence[Spread | None]) -> tuple[str, float]:
    largest = max((spread.mean for spread in spreads if spread is not None), default=0.0)
    return next(((name, length) for name, length in _UNITS if largest >= _MANY_UNITS * length), ("s", 1.0))


def _spread(spread: Spread | None, length: float, kind: str, *, whole: bool) -> str:
    if spread is None:
        return "-"
    text = _number(spread.mean, length, kind)
    if spread.high - spread.low <= _EQUAL * abs(spread.mean):
        return text
    if whole:
        return f"{text} ({_number(spread.low, length, kind)} to {_number(spread.high, length, kind)})"
    return f"{text} ±{_number((spread.high - spread.low) / 2, length, kind, digits=2)}"


def _number(value: float, length: float, kind: str, *, digits: int = 3) -> str:
    if kind == "share":
        return f"{value * 100:.1f}%" if value >= 0.001 or value == 0 else f"{value * 100:.2g}%"
    if kind == "ratio":
        return f"×{value:.2f}"
    scaled = value / length
    return f"{scaled:,.0f}" if abs(scaled) >= 1000 else f"{scaled:.{digits}g}"


def document_of(
    comparison: Comparison,
    contenders: Sequence[Contender],
    workload: Workload,
    settings: dict[str, Any],
    *,
    with_apps: bool = False,
) -> dict[str, Any]:
    """Return everything for programs: times in seconds, shares as parts of 1, each figure as mean, low and high over the
    seeds; optionally with every app of every run."""
    return {
        "workload": {
            "name": workload.name,
            "apps": len(workload.apps),
            "rows": workload.rows,
            "cut": workload.cut,
            "skipped": [{"line": row.line, "reason": row.reason, "broken": row.broken} for row in workload.skipped],
            "unsorted": list(workload.unsorted),
            "assumptions": list(workload.assumptions),
        },
        "settings": settings,
        "base": comparison.base,
        "policies": [
            {
                "label": contender.label,
                "policy": contender.policy,
                "params": contender.params,
                "task_time_share": comparison.tasks.get(contender.label, 0.0),
                **_figures(comparison.row(contender.label)),
                "runs": [
                    {
                        "seed": seed,
                        "window_s": comparison.window_of(place),
                        "utilization": comparison.window_means(contender.label, "utilization")[place],
                        "fairness_loss": comparison.window_means(contender.label, "fairness_loss")[place],
                        **_run(run),
                        **({"apps": _apps(run)} if with_apps else {}),
                    }
                    for place, (seed, run) in enumerate(
                        zip(settings["seeds"], comparison.runs[contender.label], strict=True)
                    )
                ],
            }
            for contender in contenders
        ],
    }


def _figures(row: Row) -> dict[str, Any]:
    fields = [name for name in row.__struct_fields__ if name not in ("label", "over_budget")]
    figures = {name: spread._asdict() if (spread := getattr(row, name)) is not None else None for name in fields}
    return {**figures, "over_budget": row.over_budget}


def _run(run: Run) -> dict[str, Any]:
    return {
        "completed": len(run.completions),
        "unfinished": [app.name for app in run.apps if not app.how],
        "rejected": run.rejected,
        "completion_s": run.mean_completion_s,
        "wait_s": run.mean_wait_s,
        "makespan_s": run.makespan_s,
        "adjustments": run.adjustments,
        "adjustment_time_share": run.adjustment_time_share,
        "worst_finish_ratio": run.worst_finish_ratio,
        "decisions": len(run.decisions),
        "samples": len(run.samples),
    }


def _apps(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "name": app.name,
            "submitted_s": (app.submitted - run.begin) / 1e9,
            "wait_s": app.wait_s,
            "completion_s": app.completion_s,
            "how": app.how,
            "adjustments": app.adjustments,
            "held_s": app.held_s,
            "lost_s": app.lost_s,
            "finish_ratio": app.finish_ratio,
        }
        for app in run.apps
    ]


def skipped_in_words(workload: Workload) -> str:
    """Return one line: how many rows were skipped, the first with their reasons, and how many were out of order; '' for
    none."""
    parts = []
    if workload.skipped:
        reasons = [(row.line, row.reason[:_LONGEST_REASON]) for row in workload.skipped[:_MOST_NAMED]]
        some = [f"line {line}: {reason}" if line else reason for line, reason in reasons]
        more = len(workload.skipped) - len(some)
        rest = f"; and {more:,} more" if more else ""
        of = f" of {workload.rows:,}" if workload.rows else ""
        what = "row" if workload.rows else "app"
        parts.append(f"{counted(len(workload.skipped), what)}{of} skipped ({'; '.join(some)}{rest})")
    if workload.unsorted:
        lines = ", ".join(map(str, workload.unsorted[:_MOST_NAMED])) + (
            ", …" if len(workload.unsorted) > _MOST_NAMED else ""
        )
        parts.append(f"{counted(len(workload.unsorted), 'row')} out of order, sorted (line {lines})")
    return "; ".join(parts)


def unfinished(label: str, run: Run) -> str:
    """Return one line if apps had not ended when the run did; '' otherwise."""
    names = [app.name for app in run.apps if not app.how]
    if not names:
        return ""
    some = ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    )
    return f"{label}: {counted(len(names), 'app')} had not ended when the simulation did ({some})"
