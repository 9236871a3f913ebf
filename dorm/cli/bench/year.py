"""`dorm bench year`: a log that grows, and is rotated all along."""

from __future__ import annotations

from typing import Annotated

import typer

from dorm.cli.bench.report import show_report
from dorm.cli.bench.running import measuring, unless_stopped, wrong_usage
from dorm.cli.errors import run
from dorm.cli.output import Format, Output
from dorm.cli.program_logs import Verbose


def register(app: typer.Typer) -> None:
    app.command()(year)


def year(
    records: Annotated[int, typer.Option(min=50_000, max=1_000_000_000, help="Number of records of the log; 1,000,000 take at most a gigabyte of disk, and some " "minutes.")] = 300_000,
    chunk: Annotated[int, typer.Option(min=20_000, max=100_000_000, help="Number of records after which the log is rotated.")] = 100_000,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:  # fmt: skip
    """Measure start-up, memory, the state at any moment, and disk use of a log that grows while it is rotated.

    A history in virtual time goes into a real server. Figures of the first and
    the last chunk show whether anything grows with the log; the size of a year's
    archives is extrapolated.

    [bold]Examples[/]

      dorm bench year

      dorm bench year --records 10000000 --chunk 1000000 -o json
    """
    from dorm.bench.year.year import bench_year

    with measuring("year", verbose) as report_progress, wrong_usage():
        report = run(unless_stopped(bench_year(records=records, chunk=chunk, progress=report_progress)))
    show_report(report, output)
