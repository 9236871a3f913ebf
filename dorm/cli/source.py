"""Which log a command reads, a cluster's or an exported file, and up to which moment of it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dorm.cli.connect import client
from dorm.cli.errors import Fail, line
from dorm.cli.output import progress_console
from dorm.core.evolve import GapError
from replay import ReplayError
from replay.moments import MomentError, parse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from events.log import EventLog
    from replay.moments import Moment


def parse_moment(text: str | None) -> Moment | None:
    """What `--at` says, None for the end.  Raises typer.BadParameter."""
    try:
        return None if text is None else parse(text)
    except MomentError as error:
        raise typer.BadParameter(str(error)) from None


At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="SEQ|TIME|-10m",
        help="A sequence, a time (ISO 8601, UTC unless it says otherwise) or how long before the log's last record; "
        "default: its end.",
    ),
]  # fmt: skip
File = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="LOG.dorm", help="An exported log instead of a cluster's.")
]


@contextlib.asynccontextmanager
async def log_of(file: Path | None, url: str | None, cluster: str | None) -> AsyncIterator[EventLog]:
    """The log that a command is about.  What replay raises becomes one line."""
    from events.archive import ArchiveLog

    try:
        if file is None:
            async with client(url, cluster) as connected:
                yield connected.log
            return
        archive = await ArchiveLog.open(file)
        try:
            yield archive
        finally:
            await archive.close()
    except (ReplayError, GapError) as error:
        raise Fail(str(error)) from None


async def warn_if_torn(log: EventLog) -> None:
    """What is whole of a file can be used, but people should know that there was more."""
    from events.archive import ArchiveLog

    if isinstance(log, ArchiveLog) and (torn := await log.torn()):
        print(f"warning: {line(Exception(torn))}; what comes before it is used", file=sys.stderr)


@contextlib.contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console, transient=True, disable=not progress_console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
