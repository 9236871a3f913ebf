"""`dorm compare`: two apps beside each other."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dorm.cli.apps.commands import PANEL
from dorm.cli.connect import ClusterName, Url, complete_app
from dorm.cli.errors import run
from dorm.cli.output import Format, Output, console, counted, show, show_document
from dorm.cli.source import At, File, log_of, parse_at, progress_of
from dorm.cli.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from events.log.interface import ReadableLog
    from replay.comparison import Comparison, Point, Side

_PARTS = 5
"""Times at which the progress of both is shown."""
_App = typer.Argument(metavar="APP", help="Name or id of an app.", autocompletion=complete_app, show_default=False)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(compare)


def compare(
    a: Annotated[str, _App],
    b: Annotated[str, _App],
    other: Annotated[
        Path | None,
        typer.Option("--with", metavar="LOG.dorm", help="The second app is in this exported log, at its end."),
    ] = None,
    at: At = None,
    file: File = None,
    output: Output = Format.table,
    url: Url = None,
    cluster: ClusterName = None,
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

    async def work() -> Comparison:
        from replay.comparison import compare as between

        async with log_of(file, url, cluster) as log, _second(other) as second:
            with progress_of("reading") as report:
                return await between(log, a, b, moment, other=second, progress=report)

    found: Comparison = run(work())
    if output in (Format.json, Format.yaml):
        show_document(found, output)
    else:
        _show(found)


@contextlib.asynccontextmanager
async def _second(file: Path | None) -> AsyncIterator[ReadableLog | None]:
    if file is None:
        yield None
        return
    async with log_of(file, None, None) as log:
        yield log


# --- for people ---------------------------------------------------------------------------------------------------------


def _show(found: Comparison) -> None:
    headings = [("", "what"), (one_line(found.a.name), "a"), (one_line(found.b.name), "b")]
    one, other = side_lines(found.a), side_lines(found.b)
    units = list(dict.fromkeys([*found.a.given, *found.b.given]))
    rows: list[dict[str, Any]] = [{"what": what, "a": one[what], "b": other[what]} for what in one]
    rows += [
        {"what": f"given, {unit}", "a": _number(found.a.given.get(unit)), "b": _number(found.b.given.get(unit))}
        for unit in units
    ]
    show([row for row in rows if row["a"] or row["b"]], headings, Format.table)
    _titled(
        "differences between their specs",
        [{"what": d.field, "a": _said(d.a), "b": _said(d.b)} for d in found.spec],
        headings,
    )
    _titled("progress", _progress(found), headings)
    _titled("speed", _speeds(found), headings)


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


def _progress(found: Comparison) -> list[dict[str, Any]]:
    """Return the steps of both at the same times after their acceptance."""
    from replay.words import span

    longest = max((side.curve[-1].at_s for side in (found.a, found.b) if side.curve), default=0.0)
    times = [longest * part / _PARTS for part in range(1, _PARTS + 1)] if longest else []
    return [
        {"what": f"after {span(time)}", "a": _point(found.a.curve, time), "b": _point(found.b.curve, time)}
        for time in times
    ]


def _point(curve: Sequence[Point], time: float) -> str | None:
    last = next((point for point in reversed(curve) if point.at_s <= time + 1e-9), None)
    if last is None:
        return None
    loss = "" if last.loss is None else f", loss {last.loss:.4g}"
    return f"step {last.step}{loss} ({counted(last.containers, 'container')})"


def _speeds(found: Comparison) -> list[dict[str, Any]]:
    """Return steps per second by the number of containers."""

    def by_size(side: Side) -> dict[int, list[float]]:
        sizes: dict[int, list[float]] = {}
        for speed in side.speeds:
            sizes.setdefault(speed.containers, []).append(speed.steps_per_s)
        return sizes

    one, other = by_size(found.a), by_size(found.b)
    return [
        {
            "what": f"{size} container{'' if size == 1 else 's'}, steps/s",
            "a": _number(max(one[size])) if size in one else None,
            "b": _number(max(other[size])) if size in other else None,
        }
        for size in sorted({*one, *other})
    ]


def _said(value: Any) -> str | None:
    return None if value is None else one_line(str(value))[:60]


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.4g}"
