"""`dorm bench run`: from `dorm run` to the first line of output."""

from __future__ import annotations

from typing import Annotated

import typer

from dorm.cli.bench.report import show_report
from dorm.cli.bench.running import measuring, unless_stopped
from dorm.cli.errors import run as run_work
from dorm.cli.output import Format, Output
from dorm.cli.program_logs import Verbose


def register(app: typer.Typer) -> None:
    app.command("run")(bench_of_run)


def bench_of_run(
    files: Annotated[int, typer.Option(min=1, max=20_000, help="Number of files in the project.")] = 200,
    runs: Annotated[int, typer.Option(min=1, max=1000, help="Number of runs after the first, which ships it.")] = 10,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure the time from `dorm run` of a project to the first line of its output, compared with Python alone, and
    what a second run sends.

    [bold]Examples[/]

      dorm bench run

      dorm bench run --files 2000 -o json
    """
    from dorm_lab.bench.run import bench_run

    with measuring("run", verbose) as progress:
        report = run_work(unless_stopped(bench_run(files=files, runs=runs, progress=progress)))
    show_report(report, output)
