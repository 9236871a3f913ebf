"""`dorm replay page`: a log, or a part of it, as one file that shows the dashboard offline."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import WrongUsage
from dorm.cli.output import console, counted, progress_console
from dorm.cli.source import File, log_of, parse_moment, progress_of

if TYPE_CHECKING:
    from replay.moments import Moment

PAGES = (".html", ".htm")
_MOMENT = "SEQ|TIME|-10m"


def register(app: typer.Typer) -> None:
    """Register the command of `dorm replay`."""
    app.command("page")(page)


def _target(path: Path) -> Path:
    if str(path) != "-" and path.suffix.lower() not in PAGES:
        raise WrongUsage(f"{path}: name a file that ends in .html, or - for standard output", code="usage.file_name")
    return path


@command()
async def page(
    cx: Cluster,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.html", callback=_target, help="File to write, or - for standard output.")],
    since: Annotated[str | None, typer.Option(metavar=_MOMENT, help="Start at this moment: a sequence, a time, or a duration before the log's last record; " "default: the log's start.")] = None,
    until: Annotated[str | None, typer.Option(metavar=_MOMENT, help="End at this moment; default: the log's end.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    file: File = None,
) -> None:  # fmt: skip
    """Write the dashboard of a log as one file that needs no server and no network.

    The file shows the cluster at any moment of the log: nodes with their
    containers, partitions over time, every decision with its reasons, what
    happened to apps and nodes, and the log itself. Long logs are thinned out; the
    command and the page say what is omitted. The file contains names and messages
    of the log; to share it with outsiders, first make a log with `dorm replay
    export --anonymize`.

    [bold]Examples[/]

      dorm replay page -o incident.html --since -2h

      dorm replay page -o incident.html --file incident.dorm
    """
    await write(output, parse_moment(since), parse_moment(until), force=force, file=file, cx=cx)


async def write(
    output: Path, since: Moment | None, until: Moment | None, *, force: bool, file: Path | None, cx: Cluster,
) -> None:  # fmt: skip
    """Write the page, and print its contents and omissions."""
    from dorm.web.offline import page as offline
    from replay.page.recording import record
    from replay.whole_file import in_thread, whole_file

    name = cx.target().cluster if file is None else "a log" if str(file) == "-" else file.stem
    async with log_of(file, cx) as log, whole_file(output, force=force) as target:
        with progress_of("folding") as report:
            recording = await record(log, name, since, until, progress=report)
        written = await asyncio.to_thread(lambda: offline(msgspec.json.encode(recording), name).encode())
        await in_thread(target.write, written)
    for note in recording.notes:
        progress_console.print(note, markup=False)
    if str(output) != "-":
        console.print(
            f"{counted(len(recording.timeline.apps), 'app')}, {counted(len(recording.changes), 'moment')} and "
            f"{counted(len(recording.timeline.decisions), 'decision')} are in {output} ({len(written):,} bytes)",
            markup=False,
        )
