"""`dorm history`: apps of the past, of any age."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.apps.commands import PANEL
from dorm.cli.connect import ClusterName, Url, client, complete, complete_app
from dorm.cli.errors import WrongUsage, run
from dorm.cli.output import Format, SheetFormat, SheetOutput, ago, console, counted, show, show_document, write_csv
from dorm.cli.source import File, log_of, parse_moment, progress_of
from dorm.cli.swept.lines import with_parameters
from dorm.cli.tables import reported_step

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from replay.comparison import Side
    from replay.past import Condition, Gathered, PastApp

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


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(history)


def _complete_user(ctx: typer.Context, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda state: [app.tenant for app in state.apps.values()])


def history(
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
    url: Url = None,
    cluster: ClusterName = None,
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
    for one in state or ():
        if one not in STATES:
            raise WrongUsage(f"--state: {one} is not a state; the states are {', '.join(STATES)}")
    try:
        conditions = [parse_condition(one) for one in metric or ()]
        in_order([], sort)
    except SelectError as error:
        raise WrongUsage.of(error) from None
    if compare:
        _compare(names, end, file, output, url, cluster)
        return

    async def work() -> tuple[Gathered, list[str]]:
        from replay.past import gather, named

        def wanted(app: Any) -> bool:
            group = app.spec.group.name if app.spec.group is not None else ""
            return not names or any(named(app.name, app.id, group, one) for one in names)

        async with _log(file, url, cluster) as (log, me):
            with progress_of("reading") as report:
                found = await gather(log, begin, end, wanted=wanted, progress=report)
        return found, _own(found.state, me) if not user else list(user)

    found, users = run(work())
    rows = in_order(select(found.apps, names=names, users=users, states=state or (), conditions=conditions), sort)
    _show(rows, found, output, last, conditions)


@contextlib.asynccontextmanager
async def _log(file: Path | None, url: str | None, cluster: str | None) -> AsyncIterator[tuple[ReadableLog, str]]:
    """Yield the log, and who reads it; "" for a file."""
    if file is not None:
        async with log_of(file, url, cluster) as log:
            yield log, ""
        return
    async with client(url, cluster) as connected:
        yield connected.log, connected.user


def _own(state: State, user: str) -> list[str]:
    """Return the only tenant whose apps a reader is shown by default: a plain user's view hides what others did."""
    known = state.known.users.get(user) if state.known is not None and user else None
    return [known.tenant or known.name] if known is not None and known.role == "user" else []


def _show(
    rows: list[PastApp], found: Gathered, output: SheetFormat, last: int | None, conditions: Sequence[Condition]
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
        console.print(Text(f"no apps{which} among {counted(len(found.apps), 'app')} of that time"))
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


def _compare(
    names: Sequence[str], moment: Any, file: Path | None, output: SheetFormat, url: str | None, cluster: str | None
) -> None:
    if not 2 <= len(names) <= _MOST_COMPARED:
        text = f"--compare: name 2 to {_MOST_COMPARED} apps, such as `dorm history a b --compare`"
        raise WrongUsage(text, code="usage.nothing_to_do")
    if output is SheetFormat.csv:
        raise WrongUsage("--compare has no CSV; use -o json", code="usage.conflict")

    async def work() -> list[tuple[Side, dict[str, Any]]]:
        from replay.comparison import sides

        async with log_of(file, url, cluster) as log:
            with progress_of("reading") as report:
                return await sides(log, names, moment, report)

    from dorm.cli.past.compared import show_compared

    show_compared(run(work()), Format(output.value))
