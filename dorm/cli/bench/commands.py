"""`dorm bench NAME`: measurements of this system on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli import laboratory
from dorm.cli.bench import api, flood, year
from dorm.cli.bench.options import Docker, Runtime, RuntimeWanted
from dorm.cli.bench.report import show_report
from dorm.cli.bench.running import measuring, unless_stopped
from dorm.cli.errors import run
from dorm.cli.output import Format, Output
from dorm.cli.program_logs import Verbose

if TYPE_CHECKING:
    from events.log.records import Record

app = typer.Typer(
    help="Run benchmarks on this machine. -o json prints results in the same format for every benchmark.",
    no_args_is_help=True,
)


@app.command()
def codec(
    events: Annotated[int, typer.Option(min=1, max=10_000_000, help="Events in each pass.")] = 100_000,
    passes: Annotated[int, typer.Option(min=1, max=1000, help="Number of measurements.")] = 7,
    file: Annotated[
        Path | None, typer.Option(help="Log of `dorm replay export` to measure instead of the demo's.")
    ] = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure the CPU time to encode, decode and fold one event, for the mix of kinds in the demo's log.

    [bold]Examples[/]

      dorm bench codec

      dorm bench codec --passes 20 -o json
    """
    from dorm.bench.codec import bench_codec

    with measuring("codec", verbose) as report_progress:
        log = run(_read(file)) if file is not None else None
        report = bench_codec(events=events, passes=passes, progress=report_progress, log=log)
    show_report(report, output)


@app.command("exec")
def bench_of_exec(
    runs: Annotated[int, typer.Option(min=1, max=100_000, help="Number of sessions, one after the other.")] = 200,
    commands: Annotated[int, typer.Option(min=0, max=10_000, help="How often to run the command itself.")] = 20,
    runtime: Runtime = RuntimeWanted.auto,
    docker: Docker = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure `dorm exec APP -- true`, by a connected client and as a command, next to `true` alone.

    [bold]Examples[/]

      dorm bench exec

      dorm bench exec --runtime process --runs 50 -o json
    """
    from dorm.bench.exec import bench_exec

    with measuring("exec", verbose) as report_progress:
        work = bench_exec(
            runs=runs, commands=commands, wanted=runtime.value, docker_url=docker, progress=report_progress
        )
        report = run(unless_stopped(work))
    show_report(report, output)


@app.command()
def submit(
    apps: Annotated[int, typer.Option(min=1, max=100_000, help="Number of apps, one after the other.")] = 50,
    runtime: Runtime = RuntimeWanted.auto,
    docker: Docker = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure the time from submission to running container, for small apps on an idle cluster.

    [bold]Examples[/]

      dorm bench submit

      dorm bench submit --runtime process --apps 10 -o json
    """
    from dorm.bench.submit import bench_submit

    with measuring("submit", verbose) as report_progress:
        report = run(
            unless_stopped(bench_submit(apps=apps, wanted=runtime.value, docker_url=docker, progress=report_progress))
        )
    show_report(report, output)


@app.command()
def resize(
    runs: Annotated[int, typer.Option(min=1, max=100_000, help="Number of resizes.")] = 10,
    runtime: Runtime = RuntimeWanted.auto,
    docker: Docker = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure the phases of checkpointing and restarting a training app with another number of containers.

    [bold]Examples[/]

      dorm bench resize

      dorm bench resize --runtime docker --runs 20 -o json
    """
    from dorm.bench.resize import bench_resize

    with measuring("resize", verbose) as report_progress:
        report = run(
            unless_stopped(bench_resize(runs=runs, wanted=runtime.value, docker_url=docker, progress=report_progress))
        )
    show_report(report, output)


api.register(app)
flood.register(app)
year.register(app)
laboratory.add_benches(app)


async def _read(file: Path) -> list[Record]:
    from events.archive.segments import open_archive

    archive = await open_archive(file)
    try:
        return [record async for batch in archive.read() for record in batch]
    finally:
        await archive.close()
