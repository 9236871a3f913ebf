"""`dorm bench elastic`: live resizing, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.bench.running import show_measurements, wrong_usage
from dorm.cli.output import Format, Output
from dorm.cli.program_logs import Verbose

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm_lab.bench.elastic.elastic import Done


def register(app: typer.Typer) -> None:
    app.command()(elastic)


def elastic(
    part: Annotated[list[str] | None, typer.Option(help="pauses, peers, shared, targets, balance or schedules; may be repeated. Default: all.")] = None,
    workers: Annotated[list[int] | None, typer.Option(min=2, max=64, help="An even size at which to measure pauses; may be repeated. Default: 2, 4, 8.")] = None,
    cycles: Annotated[int, typer.Option(min=1, max=1000, help="How often the NumPy workers shrink, grow and lose one.")] = 4,
    schedules: Annotated[int, typer.Option(min=1, max=1_000_000, help="Random schedules of resizes, deaths and freezes.")] = 200,
    torch: Annotated[bool, typer.Option(help="Also measure PyTorch, torchrun and torchft, if they are installed.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less of everything, without PyTorch.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Plot how training converges; needs dorm\\[plots].")] = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:  # fmt: skip
    """Compare live resizing with checkpoint and restart: pauses, convergence, balance, the cost of a partition, the use
    of samples.

    It takes some minutes on two idle cores, and as long again for PyTorch. Ctrl-C
    prints what was measured so far.

    [bold]Examples[/]

      dorm bench elastic --quick

      dorm bench elastic --part pauses --workers 4 --cycles 10

      dorm bench elastic --plot convergence.png -o json
    """
    from dorm_lab.bench.elastic.elastic import PARTS, QUICK, Wanted, bench_elastic, check
    from dorm_lab.bench.optimizer.plot import check_plot

    wanted = QUICK if quick else Wanted(cycles=cycles, schedules=schedules, torch=torch)
    wanted = wanted._replace(parts=tuple(part or PARTS), sizes=tuple(workers or wanted.sizes))
    with wrong_usage():
        check(wanted)
        check_plot(plot)

    def measured(progress: Callable[[str], None]) -> Done:
        done = bench_elastic(wanted, progress=progress)
        if plot is not None and done.results.trained:
            from dorm_lab.bench.elastic.plot import plot_targets

            plot_targets(done.results.trained, plot)
        return done

    show_measurements("elastic", measured, output, verbose)
