"""`dorm usage`: what users, apps and nodes were given, used and lost over a span of time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete, complete_app, complete_node
from dorm.cli.errors import WrongUsage, line
from dorm.cli.output import Format, Output, console, progress_console, show, show_document
from dorm.cli.source import File, log_of, parse_moment, progress_of

if TYPE_CHECKING:
    from dorm.core.state import State
    from replay.usage.usage import Row, Usage, Uses

_MOMENT = "SEQ|TIME|-10m"
_ENDINGS = (".csv", ".parquet", ".png")
_SHOWN = 200
"""Rows of a table; files and JSON have all."""


def _complete_user(ctx: typer.Context, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda state: [app.tenant for app in state.apps.values()])


@command()
async def usage(
    cx: Cluster,
    by: Annotated[str, typer.Option(metavar="user,app,node", help="Group by user, app and node (one or more, separated by commas), or by resource for the " "whole cluster.")] = "user",
    since: Annotated[str | None, typer.Option("--from", metavar=_MOMENT, help="Start of the span: a sequence, a time or a duration before the log's last record; " "default: the log's start.")] = None,
    until: Annotated[str | None, typer.Option("--to", metavar=_MOMENT, help="End of the span, in the same form; default: now, or the end of a file.")] = None,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="Compute sums for each period of this length, such as 1h or 1d.")] = None,
    user: Annotated[list[str] | None, typer.Option("--user", metavar="USER", autocompletion=_complete_user, help="Only this user; may be repeated.")] = None,
    app: Annotated[list[str] | None, typer.Option(metavar="APP", autocompletion=complete_app, help="Only this app (name or id); may be repeated.")] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NODE", autocompletion=complete_node, help="Only this node; may be repeated.")] = None,
    save: Annotated[list[Path] | None, typer.Option("--save", metavar="FILE", help="Also write a file: .csv, .parquet (needs the extra arrow) or .png (needs plots); - " "prints only CSV to standard output. May be repeated.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    file: File = None,
    output: Output = Format.table,
) -> None:  # fmt: skip
    """Show who was given how much of the cluster in a period, how much was used, and what adjustments cost.

    GIVEN is container-time times demand, from placement to end, so users and
    nodes have the same total. USED is what agents measured (CPU time, resident
    memory) when each container ended; KNOWN is the part of GIVEN whose use is
    known, and WASTED the part of that which was not used. LOST are pauses of
    adjustments and the work that had to be repeated. `docs/accounting.md` has the
    definitions.

    JSON has begin and end (log time, UTC ns), first and last (sequences), by,
    rows and totals; each row its period, user, app, app_id, node, resource, unit,
    container_hours, given, used, known, wasted, paused, redone, lost and
    capacity, which is null if rows are of single users or apps.

    [bold]Examples[/]

      dorm usage --from -1d

      dorm usage --by user,app --from 2026-11-01 --to 2026-12-01 --save november.csv

      dorm usage --by node --every 1h --from -1d --save day.png

      dorm usage --user alice --file incident.dorm -o json
    """
    groups, every_s = _groups(by), _every(every)
    targets = [_target(path) for path in save or []]
    begin, end = parse_moment(since), parse_moment(until)

    from replay.usage.usage import usage as between

    if any(path.suffix.lower() == ".png" for path in targets):
        from replay.usage.plot import need

        need()
    async with log_of(file, cx) as log:
        with progress_of("folding") as report:
            result = await between(
                log, begin, end, by=groups, users=user or (), apps=app or (), nodes=node or (), every_s=every_s,
                now=time.time_ns() if file is None else 0,
                uses=None if file is not None else lambda state: _uses(state, cx), progress=report,
            )  # fmt: skip
    title = cx.target().cluster if file is None else "a log" if str(file) == "-" else file.stem
    piped = any(str(path) == "-" for path in targets)
    if not piped:
        if output in (Format.json, Format.yaml):
            show_document(result, output)
        else:
            _show(result, output)
    for path in targets:
        await _save(result, path, title, force=force)
        if not piped and output not in (Format.json, Format.yaml):
            console.print(Text(f"{len(result.rows):,} rows are in {path}", style="dim"), soft_wrap=True)


def _groups(by: str) -> tuple[str, ...]:
    from replay.usage.ledger import GROUPS

    names = [name.strip() for name in by.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*GROUPS, "resource")]
    if unknown or not names:
        what = f"unknown key {unknown[0]!r}" if unknown else "it names nothing"
        raise WrongUsage(f"--by: {what}; write user, app, node or resource", code="usage.by.unknown")
    return tuple(name for name in names if name != "resource")


def _every(text: str | None) -> float:
    from events.errors import code_of
    from events.quantities import duration

    try:
        seconds = 0.0 if text is None else duration(text)
    except ValueError as error:
        raise WrongUsage(f"--every: {error}", code=code_of(error)) from None
    if text is not None and seconds < 1.0:
        raise WrongUsage("--every: a period is at least 1s long; write 1h, for example", code="usage.every.too_short")
    return seconds


def _target(path: Path) -> Path:
    if str(path) != "-" and path.suffix.lower() not in _ENDINGS:
        raise WrongUsage(
            f"{path}: name a file that ends in .csv, .parquet or .png, or - for CSV on standard output",
            code="usage.file_name",
        )
    return path


async def _uses(state: State, cx: Cluster) -> Uses:
    """Return what running containers have used, by the last heartbeat of each node that is up."""
    from dorm.client.reports import last_uses
    from events.log.records import LogError

    async with cx.client() as connected:
        try:
            return await last_uses(connected.bus, connected.cluster, state)
        except* LogError as errors:
            text = f"what running containers use is not known: {line(errors.exceptions[0])}"
            progress_console.print(Text(text), soft_wrap=True)
    return {}


async def _save(usage: Usage, path: Path, title: str, *, force: bool) -> None:
    from replay.whole_file import in_thread, whole_file

    async with whole_file(path, force=force) as target:
        written = await asyncio.to_thread(_bytes, usage, path.suffix.lower(), f"dorm · {title}")
        await in_thread(target.write, written)


def _bytes(usage: Usage, ending: str, title: str) -> bytes:
    from replay.usage import tables

    if ending == ".png":
        from replay.usage.plot import png

        return png(usage, title)
    return tables.as_parquet(usage) if ending == ".parquet" else tables.as_csv(usage)


# --- for people ---------------------------------------------------------------------------------------------------------


def _show(usage: Usage, output: Format) -> None:
    from replay.words import moment, span

    length = span((usage.end - usage.begin) / 1e9)
    text = f"{moment(usage.begin)} to {moment(usage.end)}: {length}, records {usage.first + 1} to {usage.last}"
    console.print(Text(text, style="dim"), soft_wrap=True)
    if not usage.rows:
        console.print(Text("nothing was given in this span"))
        return
    periods = len({row.begin for row in usage.rows}) > 1
    rows = [_cells(row, periods) for row in usage.rows[:_SHOWN]]
    columns = [
        *([("FROM", "from")] if periods else []),
        *((name.upper(), name) for name in usage.by),
        ("RESOURCE", "resource"), ("GIVEN", "given"), ("USED", "used"), ("KNOWN", "known"), ("WASTED", "wasted"), ("LOST", "lost"),
        *([("OF", "capacity")] if any(row.capacity for row in usage.rows) else []),
        ("UNIT", "unit"),
    ]  # fmt: skip
    wide = [("PAUSED", "paused"), ("REDONE", "redone"), ("CONTAINER HOURS", "container_hours"), ("APP ID", "app_id")]
    totals = [
        {**_cells(row, False), "from": "total", **({usage.by[0]: "total"} if usage.by else {})} for row in usage.totals
    ]
    several = len(usage.rows) > len(usage.totals)
    show([*rows, *(totals if several else [])], columns, Format.table if output is Format.table else output, wide=wide)
    if len(usage.rows) > _SHOWN:
        text = f"and {len(usage.rows) - _SHOWN:,} more rows (--save usage.csv has all)"
        console.print(Text(text, style="dim"), soft_wrap=True)


def _cells(row: Row, periods: bool) -> dict[str, Any]:
    from replay.words import moment

    return {
        "from": moment(row.begin).removesuffix(" UTC") if periods else "",
        "user": row.user,
        "app": row.app,
        "app_id": row.app_id,
        "node": row.node,
        "resource": row.resource,
        "unit": row.unit,
        "container_hours": _number(row.container_hours),
        "given": _number(row.given),
        "used": _number(row.used),
        "known": _part(row.known, row.given),
        "wasted": _number(row.wasted),
        "lost": _number(row.lost),
        "paused": _number(row.paused),
        "redone": _number(row.redone),
        "capacity": f"{_number(row.capacity)} ({_part(row.given, row.capacity)})" if row.capacity else None,
    }


def _number(amount: float | None) -> str | None:
    """Return an amount to two digits after the point, or more if it is small."""
    if amount is None:
        return None
    return f"{amount:,.2f}" if abs(amount) >= 1 or not amount else f"{amount:.2g}"


def _part(part: float, of: float) -> str | None:
    return f"{part / of:.0%}" if of else None
