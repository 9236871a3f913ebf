"""The log for other tools and people: `dorm export traces` makes traces of apps, `dorm incident` one folder about what happened."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import WrongUsage
from dorm.cli.output import console, counted, solver_prints_elsewhere
from dorm.cli.settings import parse_pairs
from dorm.cli.signals import run_until_stopped
from dorm.cli.source import File, log_of, parse_moment, progress_of
from dorm.cli.states import Moments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from replay.traces import Span

    Send = Callable[[list[Span]], Awaitable[None]]


# --- traces -----------------------------------------------------------------------------------------------------------

app = typer.Typer(help="Export the log to other tools.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """With a callback, a group of one command stays a group."""


@app.command("traces")
@command()
async def traces(
    cx: Cluster,
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
            help="Send the traces to this receiver by OTLP over HTTP, such as http://127.0.0.1:4318.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the traces to this file, as lines of OTLP JSON."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Header for the receiver, such as Authorization='Bearer …'; may be repeated."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="SEQ|TIME|-10m", help="Only phases that end after this moment; default: the whole log."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue as the log grows.")] = False,
    file: File = None,
) -> None:
    """Export one trace for each app, with a span for each phase: wait, start, run, stop.

    A span is exported when its phase has ended. Ids follow from the log, so a
    repeated export creates the same spans, and past phases can be exported at any
    time.

    [bold]Examples[/]

      dorm export traces --otlp http://127.0.0.1:4318 --follow

      dorm export traces --since -1d -o otlp.json

      dorm export traces --file incident.dorm --otlp https://otlp.example.org --header api-key=…
    """
    if (otlp is None) == (output is None):
        raise WrongUsage("name a receiver with --otlp, or a file with -o", code="usage.conflict")
    if follow and file is not None:
        raise WrongUsage("--follow never ends, so it can't go with --file", code="usage.conflict")
    moment, headers = parse_moment(since), parse_pairs(header, "header")

    async def work() -> None:
        from replay.traces import cluster_of, export_spans

        async with log_of(file, cx) as log:
            name = await cluster_of(log)
            async with _sink(otlp, output, name, headers, follow) as send:
                with progress_of("exporting") as report:
                    shown = None if follow else report
                    count = await export_spans(log, name, send, since=moment, follow=follow, progress=shown)
        console.print(Text(f"{count:,} spans are in {output or otlp}"), soft_wrap=True)

    await run_until_stopped(work())


def _new(path: Path) -> BinaryIO:
    """Open a file that its owner alone can read, if it is new: it has the names of all tenants' apps."""
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600))


@contextlib.asynccontextmanager
async def _sink(
    otlp: str | None, output: Path | None, cluster: str, headers: dict[str, str], follow: bool
) -> AsyncIterator[Send]:
    import asyncio

    from replay.traces import as_json

    if otlp is not None:
        from replay.traces import Receiver

        async with Receiver(otlp, cluster, headers=headers, patience_s=None if follow else 60.0) as receiver:
            yield receiver.send
        return
    assert output is not None
    with _new(output) as opened:

        def write(spans: list[Span]) -> None:
            opened.write(as_json(cluster, spans))
            opened.flush()

        async def send(spans: list[Span]) -> None:
            await asyncio.to_thread(write, spans)

        yield send


# --- incident ---------------------------------------------------------------------------------------------------------

_MOMENT = "SEQ|TIME|-10m"


@command(cls=Moments)
async def incident(
    cx: Cluster,
    since: Annotated[str, typer.Argument(metavar="SINCE", help="Start of the incident: a sequence, a time (ISO 8601, UTC by default) or a duration " "before the log's last record, such as -10m.", show_default=False)],
    until: Annotated[str | None, typer.Option("--to", metavar=_MOMENT, help="End of the incident; default: the log's end.")] = None,
    before: Annotated[str, typer.Option(metavar="DURATION", help="How long before the start to look for changes.")] = "1h",
    folder: Annotated[Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Folder to write, which must not exist; default: incident-CLUSTER-TIME.")] = None,
    disguise: Annotated[bool, typer.Option("--disguise", help="For outsiders: replace users, apps, nodes, images, commands, variables, labels and " "addresses with pseudonyms, and drop messages. Takes about as long as an audit of that " "period.")] = False,
    file: File = None,
) -> None:  # fmt: skip
    """Write a folder about an incident, to attach to a ticket.

    README.md says what changed before (settings, drains, nodes, masters,
    submissions) and what happened; stories.md what happened to each affected app
    and node, and why; diff.md the differences between start and end.
    timeline.html is the dashboard of that period for a browser; log.dorm is its
    log, for every command with --file. With a log file, the command needs no
    cluster.

    [bold]Examples[/]

      dorm incident -10m

      dorm incident 2026-11-21T09:00 --to 2026-11-21T09:30 --before 6h -o ticket-4711

      dorm incident -10m --file backup.dorm --disguise
    """
    begin, end, before_s = parse_moment(since), parse_moment(until), _length(before)
    assert begin is not None
    path = folder or Path(f"incident-{_name(file, cx)}-{datetime.fromtimestamp(time.time(), UTC):%Y%m%d-%H%M%S}")

    from dorm.web.offline import page
    from replay.incident import write

    async with log_of(file, cx) as log:
        with progress_of("reading") as report, solver_prints_elsewhere():
            bundle = await write(
                log, path, begin, end, before_s=before_s, disguised=disguise, page=page, progress=report
            )
    stories = f"{counted(len(bundle.stories), 'story')}".replace("storys", "stories")
    console.print(
        Text(f"{path}: records {bundle.first + 1} to {bundle.last}, {stories}; begin with {path / 'README.md'}"),
        soft_wrap=True,
    )


def _name(file: Path | None, cx: Cluster) -> str:
    return cx.target().cluster if file is None else "log" if str(file) == "-" else file.stem


def _length(text: str) -> float:
    from events.errors import code_of
    from events.quantities import duration

    try:
        return duration(text)
    except ValueError as error:
        raise WrongUsage(f"--before: {error}", code=code_of(error)) from None
