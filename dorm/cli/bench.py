"""`dorm bench NAME`: what this system takes on this machine."""

from __future__ import annotations

import contextlib
import logging
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.errors import Fail, run
from dorm.cli.logs import Verbose, configure
from dorm.cli.output import Format, Output, print_table, progress_console, show_document

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from dorm.bench.report import Report
    from events.log import Record

app = typer.Typer(
    help="Measure this system on this machine.  Results are one object, the same for every bench: -o json.",
    no_args_is_help=True,
)


class RuntimeWanted(StrEnum):
    """Which runtimes to measure."""

    auto = "auto"
    docker = "docker"
    process = "process"
    both = "both"


Runtime = Annotated[RuntimeWanted, typer.Option(help="auto: processes, and Docker where an engine answers.")]
Docker = Annotated[
    str | None, typer.Option(envvar="DOCKER_HOST", help="Docker engine, such as unix:///var/run/docker.sock.")
]


@app.command()
def codec(
    events: Annotated[int, typer.Option(min=1, max=10_000_000, help="Events in each pass.")] = 100_000,
    passes: Annotated[int, typer.Option(min=1, max=1000, help="How often everything is measured.")] = 7,
    file: Annotated[
        Path | None, typer.Option(help="A log by `dorm replay export` to measure in place of the demo's.")
    ] = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """CPU time that one event takes to encode, decode and fold, on the mix of kinds that the demo's log has.

    [bold]Examples[/]

      dorm bench codec

      dorm bench codec --passes 20 -o json
    """
    from dorm.bench.codec import bench_codec

    configure(verbose, False, quiet_level=logging.ERROR)
    log = run(_read(file)) if file is not None else None
    with _progress("codec") as tell:
        report = bench_codec(events=events, passes=passes, tell=tell, log=log)
    _show(report, output)


@app.command()
def submit(
    apps: Annotated[int, typer.Option(min=1, max=100_000, help="How many, one after the other.")] = 50,
    runtime: Runtime = RuntimeWanted.auto,
    docker: Docker = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Submission to running container: small apps, one after the other, on an idle cluster of their own.

    [bold]Examples[/]

      dorm bench submit

      dorm bench submit --runtime process --apps 10 -o json
    """
    from dorm.bench.submit import bench_submit

    configure(verbose, False, quiet_level=logging.ERROR)
    with _progress("submit") as tell:
        report = run(_unless_stopped(bench_submit(apps=apps, wanted=runtime.value, docker_url=docker, tell=tell)))
    _show(report, output)


@app.command()
def resize(
    runs: Annotated[int, typer.Option(min=1, max=100_000, help="How many resizes.")] = 10,
    runtime: Runtime = RuntimeWanted.auto,
    docker: Docker = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Checkpoint and restart of a training app with another number of containers, phase by phase.

    [bold]Examples[/]

      dorm bench resize

      dorm bench resize --runtime docker --runs 20 -o json
    """
    from dorm.bench.resize import bench_resize

    configure(verbose, False, quiet_level=logging.ERROR)
    with _progress("resize") as tell:
        report = run(_unless_stopped(bench_resize(runs=runs, wanted=runtime.value, docker_url=docker, tell=tell)))
    _show(report, output)


async def _unless_stopped(work: Coroutine[None, None, Report]) -> Report:
    """Its report.  A signal ends it cleanly: nothing of its cluster is left when this raises Fail."""
    from dorm.cli.signals import run_until_stopped

    reports: list[Report] = []

    async def keep() -> None:
        reports.append(await work)

    if await run_until_stopped(keep()) or not reports:
        raise Fail("interrupted; everything was stopped", 130)
    return reports[0]


async def _read(file: Path) -> list[Record]:
    from events.archive import ArchiveLog

    archive = await ArchiveLog.open(file)
    try:
        return [record async for batch in archive.read() for record in batch]
    finally:
        await archive.close()


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[str], None]]:
    """One line on stderr that changes; plain lines where that is no terminal are left out."""
    with progress_console.status(Text(f"bench {name}")) as status:
        yield lambda text: status.update(Text(f"bench {name}: {text}"))


def _show(report: Report, output: Format) -> None:
    if output in (Format.json, Format.yaml):
        show_document(report, output)
        return
    machine = report.machine
    words = {None: "", True: "yes", False: "no"}
    rows = [
        {
            "name": name, "value": f"{figure.value:,.4g}" if figure.value < 1000 else f"{figure.value:,.0f}", "unit": figure.unit,
            "goal": figure.goal or "", "reached": words[figure.reached],
        }
        for name, figure in report.figures.items()
    ]  # fmt: skip
    print_table(
        rows,
        [("FIGURE", "name"), ("VALUE", "value"), ("UNIT", "unit"), ("GOAL", "goal"), ("REACHED", "reached")],
    )
    print_table(
        [
            {
                "where": f"{machine.cpu}, {machine.cores} cores, {machine.kernel}, {machine.python}, load {machine.load[0]:.1f}"
            }
        ],
        [("MEASURED ON", "where")],
    )
