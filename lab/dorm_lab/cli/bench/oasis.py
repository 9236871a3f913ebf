"""`dorm bench oasis`: admission by prices, compared with other schedulers."""

from __future__ import annotations

from typing import Annotated

import typer

from dorm.cli.bench.running import show_measurements
from dorm.cli.output import Format, Output
from dorm.cli.program_logs import Verbose


def register(app: typer.Typer) -> None:
    app.command()(oasis)


def oasis(
    jobs: Annotated[int, typer.Option(min=1, max=10_000, help="Number of jobs that arrive over the horizon.")] = 100,
    machines: Annotated[int, typer.Option(min=1, max=10_000, help="Number of machines for workers, and for parameter servers.")] = 50,
    slots: Annotated[int, typer.Option(min=1, max=1000, help="Horizon, in slots of an hour.")] = 100,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of workloads to average over.")] = 3,
    small: Annotated[int, typer.Option(min=0, max=10_000, help="Number of small instances to compare with their optimum.")] = 50,
    quick: Annotated[bool, typer.Option("--quick", help="Take some seconds: fewer jobs, machines and instances.")] = False,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:  # fmt: skip
    """Compare OASiS, as in its paper, with FIFO, DRF, RRH and Dorm: utility, completion times, decision times, and the
    distance from the optimum.

    It takes some minutes, most of them for decision times at larger sizes. Ctrl-C
    prints what was measured so far.

    [bold]Examples[/]

      dorm bench oasis --quick

      dorm bench oasis --jobs 200 --seeds 5 -o json
    """
    from dorm_lab.bench.oasis.oasis import QUICK, Wanted, bench_oasis
    from dorm_lab.bench.oasis.workload import Sizes

    wanted = QUICK if quick else Wanted(Sizes(jobs, machines, slots), seeds, small)
    show_measurements("oasis", lambda progress: bench_oasis(wanted, progress=progress), output, verbose)
