"""`make chaos`: injects real faults into a real cluster, and checks what survives."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.errors import USAGE, Fail, report_error, run, run_and_exit
from dorm.cli.output import Format, Output, print_table
from dorm.cli.program_logs import Verbose, configure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.bench.report import Progress
    from tests.lab.chaos.chaos import Done
    from tests.lab.chaos.recovery import Recovery

_MOST_TOLD = 20


def _complete_kind(incomplete: str) -> list[str]:
    from tests.lab.chaos.faults import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def chaos(
    seconds: Annotated[float, typer.Option("--for", min=1, max=604_800, metavar="SECONDS", help="How long faults come.")] = 120.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the schedule and of what is submitted.")] = 1,
    fault: Annotated[list[str] | None, typer.Option("--fault", metavar="KIND", autocompletion=_complete_kind, help="Only faults of this kind; may be repeated.")] = None,
    keep: Annotated[Path | None, typer.Option(metavar="FOLDER", file_okay=False, help="Keep there the log (chaos.dorm), what every process printed, and what was done (chaos.json).")] = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:  # fmt: skip
    """Inject real faults into three machines in network namespaces while apps train, and check what survives.

    Each machine runs a Docker engine, a NATS server, a master and an agent.  They are killed, frozen, cut off and restarted on
    a schedule that follows from the seed, while apps are submitted.  Then everything is checked: acknowledged submissions are
    on the log and in each server's own copy of it; by the training processes' own records, no two generations of an app ever
    ran at once; completed trainings have the result of an undisturbed run; and an audit decides the log's decisions again.
    Any deviation is printed, with exit code 1.  Needs root and Docker; leaves nothing behind.

    [bold]Examples[/]

      python -m tests.lab.chaos

      python -m tests.lab.chaos --for 600 --seed 7 --keep chaos -o json

      python -m tests.lab.chaos --fault machine_cut --fault leader_paused
    """
    from dorm.cli.bench.report import progress, show_report
    from dorm.cli.signals import run_until_stopped
    from tests.lab.chaos.chaos import Wanted, bench_chaos
    from tests.lab.chaos.faults import KINDS

    configure(verbose, False, quiet_level=logging.CRITICAL)
    kinds = tuple(dict.fromkeys(fault or KINDS))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise Fail(f"--fault {unknown[0]}: use one of {', '.join(KINDS)}", USAGE)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    done: list[Done] = []

    async def work(tell: Progress) -> None:
        done.append(await bench_chaos(Wanted(seconds, seed, kinds, keep=keep), tell=tell))

    with progress("chaos") as tell:
        interrupted = run(run_until_stopped(work(tell)))
    if interrupted or not done:
        raise Fail("interrupted; everything was stopped", 130)
    if output not in (Format.json, Format.yaml):
        _show_recoveries(done[0].recoveries)
    show_report(done[0].report, output)
    for line in done[0].wrong[:_MOST_TOLD]:
        report_error(line, "chaos.wrong")
    if len(done[0].wrong) > _MOST_TOLD:
        report_error(f"and {len(done[0].wrong) - _MOST_TOLD} more", "chaos.wrong")


def _show_recoveries(recoveries: Sequence[Recovery]) -> None:
    from tests.lab.chaos.faults import KINDS

    rows = []
    for kind, about in KINDS.items():
        of_kind = sorted(one.seconds for one in recoveries if one.kind == kind and one.seconds is not None)
        if of_kind:
            middle = of_kind[(len(of_kind) - 1) // 2]
            rows.append(
                {"says": about.says, "count": len(of_kind), "p50": f"{middle:.1f}", "max": f"{of_kind[-1]:.1f}"}
            )
    print_table(rows, [("FAULT", "says"), ("TIMES", "count"), ("RECOVERY P50 S", "p50"), ("MAX", "max")])


app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
app.command()(chaos)

if __name__ == "__main__":
    run_and_exit(app)
