"""`dorm sweep show`: the apps of one sweep beside each other, with their parameters and metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import WrongUsage
from dorm.cli.output import Format, SheetFormat, SheetOutput, ago, console, show, show_document, write_csv
from dorm.cli.swept.lines import SweepName, with_parameters
from dorm.cli.tables import phases_of, reported_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.query.sweeps import SweptRow


_METRICS = [("STEP", "step"), ("LOSS", "loss"), ("RATE", "samples_per_s"), ("RAN", "ran")]
_WIDE = [("ID", "id"), ("SIZE", "containers"), ("RESIZED", "adjustments"), ("FAILURES", "failures")]


@command()
async def show_sweep(
    cx: Cluster,
    sweep: SweepName,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Sort, the best first, by loss, container_s (both: less is better), step or samples_per_s.",
        ),
    ] = None,
    output: SheetOutput = SheetFormat.table,
) -> None:
    """Show the apps of a sweep side by side: parameters, state, metrics.

    Ended apps are included as long as the cluster keeps them (`dorm policy get
    retention`); `dorm history` has all.

    JSON has the sweep's name, user, count, submitted, parallel, phases,
    containers and age_s, and its apps, each with its parameters.

    [bold]Examples[/]

      dorm sweep show lr --by loss

      dorm sweep show lr -o csv > lr.csv

      dorm sweep show lr --by loss -o json | jq -r '.apps[0].name'
    """
    from dorm.client.sweeps.finding import find_sweep
    from dorm.core.query.sweeps import METRICS, best_first, sweep_row, swept_rows

    if by is not None and by not in METRICS:
        raise WrongUsage(f"--by: {by} is not a metric of a sweep; the metrics are {', '.join(METRICS)}")

    async with cx.client() as connected:
        apps = find_sweep(await connected.state(), sweep, connected.user)
        now = time.time_ns()
        found, rows = sweep_row(apps, now), swept_rows(apps, now, await connected.reported())
    rows = best_first(rows, by) if by is not None else rows
    if output is SheetFormat.csv:
        write_csv([with_parameters(row) for row in msgspec.to_builtins(rows)])
    elif output in (SheetFormat.json, SheetFormat.yaml):
        show_document({**msgspec.to_builtins(found), "apps": msgspec.to_builtins(rows)}, Format(output.value))
    else:
        limit = f", at most {found.parallel} at once" if found.parallel else ""
        missing = f", {found.count - found.submitted} not submitted" if found.submitted < found.count else ""
        console.print(Text(f"{found.name}: {phases_of(found)}{missing}{limit}"))
        _show_table(rows, Format(output.value))


def _show_table(rows: Sequence[SweptRow], output: Format) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row.parameters))
    columns = [("NAME", "name"), ("PHASE", "phase"), *((name, f"={name}") for name in names), *_METRICS]
    plain: list[dict[str, Any]] = [
        {
            **msgspec.to_builtins(row),
            **{f"={name}": _shown(value) for name, value in row.parameters.items()},
            "step": reported_step(row.step, row.loss, row.loss_is),
            "loss": row.loss_is or row.loss,
            "ran": ago(row.container_s) if row.container_s else None,
        }
        for row in rows
    ]
    show(plain, columns, output, wide=_WIDE, note=("NOTE", "note"))


def _shown(value: object) -> str:
    """Return a parameter as its command has it: `0.001`, not `1e-03`."""
    from events.spec.groups import as_text

    assert isinstance(value, bool | int | float | str)
    return as_text(value)
