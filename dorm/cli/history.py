"""Apps of the past: `dorm history` lists those of any age, and sets several side by side; `dorm compare` compares two."""

from __future__ import annotations

import contextlib
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete, complete_app
from dorm.cli.errors import WrongUsage
from dorm.cli.explain import BARS
from dorm.cli.output import (
    Format,
    Output,
    SheetFormat,
    SheetOutput,
    ago,
    console,
    counted,
    show,
    show_document,
    write_csv,
)
from dorm.cli.source import At, File, log_of, parse_at, parse_moment, progress_of
from dorm.cli.tables import reported_step, with_parameters
from dorm.cli.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from replay.comparison import Comparison, Point, Side
    from replay.past import Condition, Gathered, PastApp


# --- two apps ---------------------------------------------------------------------------------------------------------

_PARTS = 5
"""Times at which the progress of both is shown."""
_App = typer.Argument(metavar="APP", help="Name or id of an app.", autocompletion=complete_app, show_default=False)


@command()
async def compare(
    cx: Cluster,
    a: Annotated[str, _App],
    b: Annotated[str, _App],
    other: Annotated[
        Path | None,
        typer.Option("--with", metavar="LOG.dorm", help="The second app is in this exported log, at its end."),
    ] = None,
    at: At = None,
    file: File = None,
    output: Output = Format.table,
) -> None:
    """Compare two apps: specs, progress, resizes, and what they were given and lost.

    Name an app by its id, or by its name for the newest app of that name; ended
    apps are included. To compare with an app in another log, name that log with
    --with. To compare spans of time, use `dorm usage` and `dorm diff`.

    JSON has a and b (times are UTC nanoseconds, lengths seconds), each with
    totals, given (by unit), speeds, curve and resizes; and spec, the fields that
    differ.

    [bold]Examples[/]

      dorm compare resnet-small resnet-large

      dorm compare resnet resnet --with yesterday.dorm

      dorm compare digits-1f0c digits-9a2e --file incident.dorm -o json
    """
    moment = parse_at(at)

    from replay.comparison import compare as between

    async with log_of(file, cx) as log, _second(other) as second:
        with progress_of("reading") as report:
            comparison = await between(log, a, b, moment, other=second, progress=report)

    if output in (Format.json, Format.yaml):
        show_document(comparison, output)
    else:
        _show_comparison(comparison)


@contextlib.asynccontextmanager
async def _second(file: Path | None) -> AsyncIterator[ReadableLog | None]:
    if file is None:
        yield None
        return
    async with log_of(file, Cluster()) as log:
        yield log


# --- for people ---------------------------------------------------------------------------------------------------------


def _show_comparison(comparison: Comparison) -> None:
    headings = [("", "what"), (one_line(comparison.a.name), "a"), (one_line(comparison.b.name), "b")]
    first, second = side_lines(comparison.a), side_lines(comparison.b)
    units = list(dict.fromkeys([*comparison.a.given, *comparison.b.given]))
    rows: list[dict[str, Any]] = [{"what": what, "a": first[what], "b": second[what]} for what in first]
    rows += [
        {
            "what": f"given, {unit}",
            "a": _number(comparison.a.given.get(unit)),
            "b": _number(comparison.b.given.get(unit)),
        }
        for unit in units
    ]
    show([row for row in rows if row["a"] or row["b"]], headings, Format.table)
    _titled(
        "differences between their specs",
        [{"what": d.field, "a": _shortened(d.a), "b": _shortened(d.b)} for d in comparison.spec],
        headings,
    )
    _titled("progress", _progress(comparison), headings)
    _titled("speed", _speeds(comparison), headings)


def _titled(title: str, rows: list[dict[str, Any]], headings: list[tuple[str, str]]) -> None:
    if rows:
        console.print(Text(f"\n{title}", style="bold"))
        show(rows, headings, Format.table)


def side_lines(side: Side) -> dict[str, str | None]:
    """Return the cells of one app's column, by the name of the line."""
    from replay.words import moment, span

    totals = side.totals
    return {
        "id": side.id,
        "user": side.user,
        "phase": f"{side.phase}{f': {side.why}' if side.why else ''}"[:60],
        "submitted": moment(side.submitted_at),
        "lived": span(side.life_s),
        "waited": span(totals.waited_s),
        "paused": span(totals.paused_s),
        "ran": span(totals.ran_s),
        "step": str(totals.step) if totals.step else None,
        "loss": _number(side.loss),
        "steps per second": _number(side.steps_per_s),
        "adjustments": str(totals.adjustments),
        "cost of one": span(side.adjust_s) if side.adjust_s is not None else None,
        "failures": str(totals.failures),
        "steps lost": str(totals.lost_steps),
        "container-hours": _number(side.container_hours),
        "lost of these": _number(side.lost_container_hours),
    }


def _progress(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the steps of both at the same times after their acceptance."""
    from replay.words import span

    longest = max((side.curve[-1].at_s for side in (comparison.a, comparison.b) if side.curve), default=0.0)
    times = [longest * part / _PARTS for part in range(1, _PARTS + 1)] if longest else []
    return [
        {"what": f"after {span(time)}", "a": _point(comparison.a.curve, time), "b": _point(comparison.b.curve, time)}
        for time in times
    ]


def _point(curve: Sequence[Point], time: float) -> str | None:
    last = next((point for point in reversed(curve) if point.at_s <= time + 1e-9), None)
    if last is None:
        return None
    loss = "" if last.loss is None else f", loss {last.loss:.4g}"
    return f"step {last.step}{loss} ({counted(last.containers, 'container')})"


def _speeds(comparison: Comparison) -> list[dict[str, Any]]:
    """Return steps per second by the number of containers."""

    def by_size(side: Side) -> dict[int, list[float]]:
        sizes: dict[int, list[float]] = {}
        for speed in side.speeds:
            sizes.setdefault(speed.containers, []).append(speed.steps_per_s)
        return sizes

    first, second = by_size(comparison.a), by_size(comparison.b)
    return [
        {
            "what": f"{size} container{'' if size == 1 else 's'}, steps/s",
            "a": _number(max(first[size])) if size in first else None,
            "b": _number(max(second[size])) if size in second else None,
        }
        for size in sorted({*first, *second})
    ]


def _shortened(value: Any) -> str | None:
    return None if value is None else one_line(str(value))[:60]


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.4g}"


# --- several apps -----------------------------------------------------------------------------------------------------

_WIDTH = 40
"""Characters of a curve."""


def show_compared(compared: Sequence[tuple[Side, dict[str, Any]]], output: Format) -> None:
    """Print apps, each with its spec, side by side."""
    from replay.comparison import differing

    sides = [side for side, _ in compared]
    differs = differing([spec for _, spec in compared])
    if output in (Format.json, Format.yaml):
        show_document({"apps": sides, "spec": differs}, output)
        return
    headings = [("", "what"), *((one_line(side.name), str(index)) for index, side in enumerate(sides))]
    tables = [side_lines(side) for side in sides]
    rows = [{"what": what, **{str(index): table[what] for index, table in enumerate(tables)}} for what in tables[0]]
    units = dict.fromkeys(unit for side in sides for unit in side.given)
    rows += [
        {
            "what": f"given, {unit}",
            **{str(index): f"{side.given.get(unit, 0.0):,.4g}" for index, side in enumerate(sides)},
        }
        for unit in units
    ]
    show([row for row in rows if any(row[str(index)] for index in range(len(sides)))], headings, Format.table)
    if differs:
        console.print(Text("\ndifferences between their specs", style="bold"))
        lines = [
            {"what": differ.field, **{str(index): _shortened(value) for index, value in enumerate(differ.values)}}
            for differ in differs
        ]
        show(lines, headings, Format.table)
    _show_curves(sides)


def _show_curves(sides: Sequence[Side]) -> None:
    curves = [[(point.at_s, point.loss) for point in side.curve if point.loss is not None] for side in sides]
    known = [[(at, loss) for at, loss in curve if isfinite(loss)] for curve in curves]
    losses = [loss for curve in known for _, loss in curve]
    if not losses:
        return
    longest = max(at for curve in known for at, _ in curve)
    console.print(Text(f"\nloss over {longest:.0f} s, between {min(losses):.4g} and {max(losses):.4g}", style="bold"))
    width = max(len(one_line(side.name)) for side in sides)
    for side, curve in zip(sides, known, strict=True):
        line = Text(f"{one_line(side.name):<{width}}  ").append(
            bars(curve, longest, min(losses), max(losses)), style="cyan"
        )
        console.print(line.append(f"  {curve[-1][1]:.4g}" if curve else "  -"))


def bars(curve: Sequence[tuple[float, float]], longest: float, low: float, high: float) -> str:
    """Return a curve as bars over `longest` seconds, from `low` to `high`: if several points fall into one bar, their last; if
    none does, the one before."""
    if not curve:
        return " " * _WIDTH
    heights: list[float | None] = [None] * _WIDTH
    for at, value in curve:
        heights[min(_WIDTH - 1, int(at / longest * _WIDTH)) if longest else 0] = value
    last = max(index for index, value in enumerate(heights) if value is not None)
    drawn = ""
    before: float | None = None
    for index, height in enumerate(heights):
        before = before if height is None else height
        if before is None or index > last:
            drawn += " "
        else:
            part = (before - low) / (high - low) if high > low else 0.0
            drawn += BARS[min(len(BARS) - 1, int(part * len(BARS)))]
    return drawn


# --- history ----------------------------------------------------------------------------------------------------------

_MOMENT = "SEQ|TIME|-10d"
_SHOWN = 50
_MOST_COMPARED = 12
_COLUMNS = [
    ("NAME", "name"), ("STATE", "state"), ("STEP", "step"), ("LOSS", "loss"), ("LIFE", "life"), ("PAUSED", "paused"),
    ("CORE-H", "core_hours"), ("RESIZED", "adjustments"), ("ENDED", "ended"),
]  # fmt: skip
_WIDE = [
    ("ID", "id"), ("USER", "user"), ("SWEEP", "sweep"), ("PARAMETERS", "parameters"), ("SUBMITTED", "submitted"),
    ("CONTAINER-H", "container_hours"), ("FAILURES", "failures"), ("LOST STEPS", "lost_steps"),
]  # fmt: skip


def _complete_user(ctx: typer.Context, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda state: [app.tenant for app in state.apps.values()])


@command()
async def history(
    cx: Cluster,
    apps: Annotated[list[str] | None, typer.Argument(metavar="[APP...]", help="Names or ids of apps, names of sweeps, or patterns such as 'lr-*'.", autocompletion=complete_app, show_default=False)] = None,
    name: Annotated[list[str] | None, typer.Option("--name", metavar="GLOB", help="The same as APP; may be repeated.")] = None,
    user: Annotated[list[str] | None, typer.Option("--user", metavar="USER", autocompletion=_complete_user, help="Only apps of this user; may be repeated. Default: all that you may see.")] = None,
    state: Annotated[list[str] | None, typer.Option("--state", metavar="STATE", help="completed, failed, cancelled or live; may be repeated. Default: all ended apps.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar=_MOMENT, help="Exclude apps that ended before this moment: a sequence, a time, or a duration before " "the log's last record. Default: the log's start.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar=_MOMENT, help="Show the apps as they were at this moment, in the same form. Default: now.")] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", "-m", metavar="CONDITION", help="Condition on a metric, such as 'loss<0.1' or 'core_hours>=2', or on a sweep's " "parameter, such as 'lr=0.1'; may be repeated.")] = None,
    sort: Annotated[str, typer.Option("--sort", metavar="[-]FIELD", help="Sort by ended, submitted, name, user, state, a metric or a parameter; a leading - " "reverses the order.")] = "-ended",
    last: Annotated[int | None, typer.Option("--last", "-n", min=1, help=f"Print at most N rows; default: {_SHOWN} in a table, otherwise all.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Compare the apps: specs, metrics, curves, costs.")] = False,
    file: File = None,
    output: SheetOutput = SheetFormat.table,
) -> None:  # fmt: skip
    """List past apps of any age: how they ended and what they cost.

    The command reads the log and its archives, so it includes apps that `dorm ps
    --all` no longer shows. Plain users see their own apps, as far back as their
    view of the log reaches. CORE-H counts the cores of containers while they ran.

    Metrics: loss, step, samples_per_s, life_s, paused_s, core_hours,
    container_hours, adjustments, failures, lost_steps, n_max.

    [bold]Examples[/]

      dorm history --since -30d --state failed

      dorm history 'lr-*' -m 'loss<0.1' --sort loss

      dorm history --user ann --sort -core_hours -n 10

      dorm history -o csv > apps.csv

      dorm history lr-0003 lr-0007 --compare
    """
    from replay.past import STATES, SelectError, in_order, parse_condition, select

    names = [*(apps or []), *(name or [])]
    begin, end = parse_moment(since), parse_moment(until)
    for wanted_state in state or ():
        if wanted_state not in STATES:
            raise WrongUsage(f"--state: {wanted_state} is not a state; the states are {', '.join(STATES)}")
    try:
        conditions = [parse_condition(condition) for condition in metric or ()]
        in_order([], sort)
    except SelectError as error:
        raise WrongUsage.of(error) from None
    if compare:
        await _compare(names, end, file, output, cx)
        return

    from replay.past import gather, named

    def wanted(app: Any) -> bool:
        group = app.spec.group.name if app.spec.group is not None else ""
        return not names or any(named(app.name, app.id, group, name) for name in names)

    async with _log(file, cx) as (log, me):
        with progress_of("reading") as report:
            gathered = await gather(log, begin, end, wanted=wanted, progress=report)
    users = _own(gathered.state, me) if not user else list(user)
    rows = in_order(select(gathered.apps, names=names, users=users, states=state or (), conditions=conditions), sort)
    _show(rows, gathered, output, last, conditions)


@contextlib.asynccontextmanager
async def _log(file: Path | None, cx: Cluster) -> AsyncIterator[tuple[ReadableLog, str]]:
    """Yield the log, and who reads it; "" for a file."""
    if file is not None:
        async with log_of(file, cx) as log:
            yield log, ""
        return
    async with cx.client() as connected:
        yield connected.log, connected.user


def _own(state: State, user: str) -> list[str]:
    """Return the only tenant whose apps a reader is shown by default: a plain user's view hides what others did."""
    known = state.known.users.get(user) if state.known is not None and user else None
    return [known.tenant or known.name] if known is not None and known.role == "user" else []


def _show(
    rows: list[PastApp], gathered: Gathered, output: SheetFormat, last: int | None, conditions: Sequence[Condition]
) -> None:
    from replay.words import moment

    if output is SheetFormat.csv:
        write_csv([with_parameters(row) for row in msgspec.to_builtins(rows[:last])])
        return
    if output in (SheetFormat.json, SheetFormat.yaml):
        show_document(rows[:last], Format(output.value))
        return
    if not rows:
        which = " that match" if conditions else ""
        console.print(Text(f"no apps{which} among {counted(len(gathered.apps), 'app')} of that time"))
        return
    shown = rows[: last or _SHOWN]
    plain = [
        {
            **msgspec.to_builtins(row),
            "step": reported_step(row.step, row.loss, row.loss_is),
            "loss": row.loss_is or row.loss,
            "life": ago(row.life_s),
            "paused": ago(row.paused_s) if row.paused_s else None,
            "submitted": moment(row.submitted_at),
            "ended": moment(row.ended_at) if row.ended_at else None,
        }
        for row in shown
    ]
    show(plain, _COLUMNS, Format(output.value), wide=_WIDE, note=("WHY", "why"))
    if len(shown) < len(rows):
        console.print(Text(f"and {len(rows) - len(shown):,} more (-n {len(rows)}, or -o csv)", style="dim"))


# --- side by side -------------------------------------------------------------------------------------------------------


async def _compare(names: Sequence[str], moment: Any, file: Path | None, output: SheetFormat, cx: Cluster) -> None:
    if not 2 <= len(names) <= _MOST_COMPARED:
        text = f"--compare: name 2 to {_MOST_COMPARED} apps, such as `dorm history a b --compare`"
        raise WrongUsage(text, code="usage.nothing_to_do")
    if output is SheetFormat.csv:
        raise WrongUsage("--compare has no CSV; use -o json", code="usage.conflict")

    from replay.comparison import sides

    async with log_of(file, cx) as log:
        with progress_of("reading") as report:
            compared = await sides(log, names, moment, report)
    show_compared(compared, Format(output.value))
