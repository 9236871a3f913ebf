"""`dorm bench flood`: what a flood of hostile submissions costs the others."""

from __future__ import annotations

from typing import Annotated

import typer

from dorm.cli.bench.report import show_report
from dorm.cli.bench.running import measuring, unless_stopped
from dorm.cli.errors import run as run_work
from dorm.cli.output import Format, Output
from dorm.cli.program_logs import Verbose


def register(app: typer.Typer) -> None:
    app.command("flood")(bench_of_flood)


def bench_of_flood(
    submissions: Annotated[
        int, typer.Option(min=10, max=1_000_000, help="Number of submissions, all of which are refused.")
    ] = 20_000,
    masters: Annotated[int, typer.Option(min=1, max=5, help="Number of masters, of which one leads.")] = 2,
    cores: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Run server, masters and the flood on this number of cores; default: all."),
    ] = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Flood a log with hostile submissions, and measure what it costs the others: elections, and answers to an honest user.

    [bold]Examples[/]

      dorm bench flood

      dorm bench flood --cores 1 --masters 1 -o json
    """
    from dorm.bench.flood import bench_flood

    with measuring("flood", verbose) as report_progress:
        work = bench_flood(submissions=submissions, masters=masters, cores=cores, progress=report_progress)
        report = run_work(unless_stopped(work))
    show_report(report, output)
