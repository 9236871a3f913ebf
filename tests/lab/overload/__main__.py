"""`make overload`: a whole cluster under load, and floods."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from dorm.cli.bench.report import progress, show_report
from dorm.cli.bench.running import unless_stopped
from dorm.cli.errors import run, run_and_exit
from dorm.cli.output import Format, Output
from dorm.cli.program_logs import Verbose, configure
from tests.lab.overload.overload import Size, bench_overload


def overload(
    agents: Annotated[int, typer.Option(min=1, max=10_000, help="How many, each with a connection of its own.")] = 1000,
    apps: Annotated[int, typer.Option(min=1, max=10_000, help="How many there are at any time.")] = 200,
    seconds: Annotated[
        float,
        typer.Option("--for", min=1, max=86_400, help="Seconds of steady load, and a third of it for each flood."),
    ] = 60.0,
    report_every: Annotated[float, typer.Option(min=0.1, help="Seconds between an agent's reports.")] = 5.0,
    flood: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Submissions in the first flood; 0 for no floods.")
    ] = 20_000,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Put a whole cluster under load: a server, a master, real agents with toy containers, and several floods.

    The floods are submissions, tails that never read, and one node's reports; the effect of each on others is measured.  A run
    takes about four minutes.

    [bold]Examples[/]

      python -m tests.lab.overload -o json

      python -m tests.lab.overload --agents 50 --apps 20 --for 10 --flood 0
    """
    configure(verbose, False, quiet_level=logging.ERROR)
    size = Size(agents=agents, apps=apps, seconds=seconds, report_interval_s=report_every, flood=flood)
    with progress("overload") as tell:
        report = run(unless_stopped(bench_overload(size, tell=tell)))
    show_report(report, output)


app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
app.command()(overload)

if __name__ == "__main__":
    run_and_exit(app)
