"""`dorm bench oasis`: admission by prices, beside other schedulers."""

from __future__ import annotations

from typing import Annotated

import typer

from dorm.cli.bench.running import show_what_was_measured
from dorm.cli.output import Format, Output
from dorm.cli.program_logs import Verbose


def register(app: typer.Typer) -> None:
    app.command()(oasis)


def oasis(
    jobs: Annotated[int, typer.Option(min=1, max=10_000, help="How many arrive over the horizon.")] = 100,
    machines: Annotated[int, typer.Option(min=1, max=10_000, help="How many for workers, and as many for parameter servers.")] = 50,
    slots: Annotated[int, typer.Option(min=1, max=1000, help="The horizon, in slots of an hour.")] = 100,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Workloads over which figures are means.")] = 3,
    small: Annotated[int, typer.Option(min=0, max=10_000, help="Small instances that are compared with their optimum.")] = 50,
    quick: Annotated[bool, typer.Option("--quick", help="Some seconds: fewer jobs, machines and instances.")] = False,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:  # fmt: skip
    """OASiS as in its paper, beside FIFO, DRF, RRH and Dorm: utility, completion times and decision times, and how close it
    comes to the optimum.

    Some minutes, most of them for decision times at larger sizes; Ctrl-C prints what was measured until then.

    [bold]Examples[/]

      dorm bench oasis --quick

      dorm bench oasis --jobs 200 --seeds 5 -o json
    """
    from dorm.bench.oasis.oasis import QUICK, Wanted, bench_oasis
    from dorm.bench.oasis.workload import Sizes

    wanted = QUICK if quick else Wanted(Sizes(jobs, machines, slots), seeds, small)
    show_what_was_measured("oasis", lambda tell: bench_oasis(wanted, tell=tell), output, verbose)
