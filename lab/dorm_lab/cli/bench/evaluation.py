"""`dorm bench evaluation`: the paper's evaluation and more, into a folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from dorm.cli.bench.report import show_figures
from dorm.cli.bench.running import wrong_usage
from dorm.cli.errors import FAILED, Fail, WrongUsage
from dorm.cli.output import Format, Output, console, show_document, solver_prints_elsewhere
from dorm.cli.program_logs import Verbose, configure
from dorm.cli.source import progress_of


def register(app: typer.Typer) -> None:
    app.command()(evaluation)


def evaluation(
    to: Annotated[Path, typer.Option(metavar="FOLDER", file_okay=False, help="Folder for report.md, report.html, the plots and evaluation.json; existing files of " "these names are replaced.")],
    traces: Annotated[Path | None, typer.Option(metavar="DIR", file_okay=False, help="Folder of real traces: philly_2017, alibaba_openb_2023, pollux_workloads with " "pollux_profiles; missing ones are skipped.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Number of seeds of the paper's workload.")] = 5,
    varied: Annotated[int, typer.Option(min=1, max=100, help="Of these, the seeds with which the workload is varied.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A few apps and one seed, to check that everything works.")] = False,
    without: Annotated[list[str] | None, typer.Option(metavar="PART", help="Leave out variations, philly, alibaba, pollux, pollux_tuned, pollux_events, restart_cost or elastic_apps, or a contender on traces such as shockwave; may be repeated.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Number of parallel runs; default: one for each core.")] = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:  # fmt: skip
    """Compare Dorm with other policies in simulation, and write a report: the paper's workload, variations of it, real
    traces.

    It takes two hours on two cores, most of it for traces. If it is interrupted,
    the same command continues from there. The report says where Dorm is ahead and
    where not, and lists all assumptions.

    [bold]Examples[/]

      dorm bench evaluation --to evaluation

      dorm bench evaluation --to evaluation --traces ~/traces -o json
    """
    from dorm.bench import BenchError
    from dorm_lab.bench.evaluation.evaluation import OPTIONAL, RARE, check_folder, evaluate, plan

    for name in without or ():
        if name not in (*OPTIONAL, *RARE):
            raise WrongUsage(f"--without: there is no {name[:40]!r}; there are {'; '.join((*OPTIONAL, *RARE))}")
    configure(verbose, False, quiet_level=logging.ERROR, lasts=False)
    with wrong_usage():
        wanted = plan(seeds=seeds, varied=varied, quick=quick, traces=traces, without=without or ())
        check_folder(to)
    try:
        with solver_prints_elsewhere(), progress_of("apps that have ended") as progress:
            report = evaluate(wanted, to, workers=workers, progress=progress)
    except BenchError as error:
        raise Fail.of(error, FAILED) from None
    if output in (Format.json, Format.yaml):
        show_document(report, output)
        return
    show_figures(report)
    console.print(f"The report is {to / 'report.md'} and {to / 'report.html'}.", markup=False, highlight=False)
