"""Sweeps as lines of tables, and their names for completion."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dorm.cli.connect import complete
from dorm.cli.output import ago
from dorm.cli.tables import phases_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dorm.core.query.sweeps import SweepRow
    from dorm.core.query.views import AppRow
    from dorm.core.state import State

SWEEPS = [
    ("SWEEP", "name"), ("APPS", "apps"), ("PHASES", "said"), ("AT ONCE", "limit"), ("CONTAINERS", "containers"), ("AGE", "age"),
]  # fmt: skip


def sweep_lines(rows: Iterable[SweepRow]) -> list[dict[str, Any]]:
    """Return the cells for the columns of `SWEEPS`."""
    return [
        {
            **msgspec.to_builtins(row),
            "apps": str(row.count) if row.submitted == row.count else f"{row.submitted}/{row.count}",
            "said": phases_of(row),
            "limit": row.parallel or None,
            "age": ago(row.age_s),
        }
        for row in rows
    ]


def complete_sweep(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of sweeps for tab completion."""
    from dorm.core.query.sweeps import sweeps

    return complete(ctx, incomplete, lambda state: [name for _, name in sweeps(state)])


def with_parameters(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose `parameters` are columns of their own, before the others; a parameter with the name of another
    column becomes `param.NAME`."""
    rest = {name: value for name, value in row.items() if name != "parameters"}
    return {(f"param.{name}" if name in rest else name): value for name, value in row["parameters"].items()} | rest


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of apps and sweeps for tab completion."""
    from dorm.core.query.sweeps import sweeps

    def names(state: State) -> list[str]:
        return [*(app.name for app in state.apps.values()), *(name for _, name in sweeps(state))]

    return complete(ctx, incomplete, names)


def grouped(
    state: State, rows: Sequence[AppRow], names: Sequence[str], user: str, *, each: bool
) -> tuple[list[AppRow], list[SweepRow]]:
    """Return the lines of `dorm ps`: with names, those of these apps, and of the apps of these sweeps, also of ended ones; with
    `each`, all apps; else the apps of no sweep, and each sweep with apps that have not ended.  Raises NotFound."""
    from dorm.client.finding import find_app
    from dorm.client.sweeps import find_sweep, is_sweep
    from dorm.core.query.sweeps import sweep_row, sweeps
    from dorm.core.query.views import app_row

    now = time.time_ns()
    if names:
        shown = {row.id: row for row in rows}
        named = {
            app.id: app
            for name in names
            for app in (find_sweep(state, name, user) if is_sweep(state, name, user) else [find_app(state, name, user)])
        }
        return [shown.get(app.id) or app_row(app, now) for app in named.values()], []
    if each:
        return list(rows), []
    live = [apps for apps in sweeps(state).values() if not all(app.ended for app in apps)]
    of = {app.id for apps in live for app in apps}
    return [row for row in rows if row.id not in of], [sweep_row(apps, now) for apps in live]


NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[APP|SWEEP...]",
        help="List only these apps, and the apps of these sweeps.",
        autocompletion=complete_name,
        show_default=False,
    ),
]
SweepName = Annotated[str, typer.Argument(metavar="SWEEP", help="Name of the sweep.", autocompletion=complete_sweep)]
