"""`dorm bench api`: the HTTP API next to a busy cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from dorm.cli.bench.report import show_report
from dorm.cli.bench.running import measuring, unless_stopped
from dorm.cli.errors import WrongUsage, run
from dorm.cli.output import Format, Output
from dorm.cli.program_logs import Verbose


def register(app: typer.Typer) -> None:
    app.command()(api)


def api(
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="Duration of each measurement.")] = 30.0,
    readers: Annotated[int, typer.Option(min=1, max=2000, help="Readers of the stream of events.")] = 1000,
    events: Annotated[float, typer.Option(min=1, max=10_000, help="Events per second on the log.")] = 100.0,
    reads: Annotated[float, typer.Option(min=1, max=10_000, help="Reads per second.")] = 200.0,
    records: Annotated[
        int,
        typer.Option(min=0, max=10_000_000, help="Records of the log for which past moments are measured; 0 for none."),
    ] = 1_000_000,
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help="live (reads, submissions, readers), moments (of a long log), browser (time to draw), "
            "page (a large cluster); may be repeated. Default: all.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take half a minute: shorter measurements, a shorter log.")
    ] = False,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure the HTTP API next to a busy master: reads, submissions, a thousand readers of the stream, any moment of a
    long log.

    The log server, master, API and callers run as separate processes on this
    machine; the figures say how many cores each used. It takes some minutes, most
    of them to fill a log of a million records.

    [bold]Examples[/]

      dorm bench api --quick

      dorm bench api --readers 1000 --events 100 -o json

      dorm bench api --part moments --records 1000000
    """
    from dorm.bench.api.api import PARTS, QUICK, Sizes, bench_api

    for name in part or ():
        if name not in PARTS:
            raise WrongUsage(f"--part: there is no {name[:40]!r}; there are {', '.join(PARTS)}")
    sizes = (
        QUICK
        if quick
        else Sizes(seconds=seconds, readers=readers, events_per_s=events, reads_per_s=reads, records=records)
    )
    if part:
        sizes = sizes._replace(parts=tuple(part))
    with measuring("api", verbose) as report_progress:
        report = run(unless_stopped(bench_api(sizes, progress=report_progress)))
    show_report(report, output)
