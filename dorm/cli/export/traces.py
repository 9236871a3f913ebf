"""`dorm export traces`: apps as traces of OpenTelemetry."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from rich.text import Text

from dorm.cli.connect import ClusterName, Url
from dorm.cli.errors import WrongUsage, run
from dorm.cli.output import console
from dorm.cli.settings import parse_pairs
from dorm.cli.signals import run_until_stopped
from dorm.cli.source import File, log_of, parse_moment, progress_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from replay.traces import Span

    Send = Callable[[list[Span]], Awaitable[None]]

app = typer.Typer(help="Export the log to other tools.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """With a callback, a group of one command stays a group."""


@app.command("traces")
def traces(
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
    url: Url = None,
    cluster: ClusterName = None,
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

        async with log_of(file, url, cluster) as log:
            name = await cluster_of(log)
            async with _sink(otlp, output, name, headers, follow) as send:
                with progress_of("exporting") as report:
                    shown = None if follow else report
                    count = await export_spans(log, name, send, since=moment, follow=follow, progress=shown)
        console.print(Text(f"{count:,} spans are in {output or otlp}"), soft_wrap=True)

    run(run_until_stopped(work()))


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
