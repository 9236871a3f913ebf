"""Which log a command reads, a cluster's or an exported file, and up to which moment of it."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dorm.cli.connect import Cluster
from dorm.cli.errors import Fail, WrongUsage, line, report_error
from dorm.cli.output import progress_console
from dorm.cli.terminal import print_line
from events.instants import read, shown
from events.quantities import SECOND
from replay.moments import AtTime, MomentError, parse, parse_clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from events.archive.damage import Damage
    from events.archive.segments import Archive
    from events.log.interface import ReadableLog
    from replay.moments import Moment


_MOST_DAMAGES = 5


_SOON = 60 * SECOND
"""Clocks differ: a time may be ahead of this machine's by so much."""


def parse_moment(text: str | None) -> Moment | None:
    """Parse the moment of `--since` or `--until`, None for the beginning or the end.  Raises WrongUsage."""
    try:
        moment = None if text is None else parse(text)
    except MomentError as error:
        raise WrongUsage.of(error) from None
    if text is not None and isinstance(moment, AtTime) and moment.time > time.time_ns() + _SOON:
        _check_zone(text)
    return moment


def parse_at(text: str | None) -> Moment | None:
    """Parse the moment of `--at`, None for the end.  A time as commands show it, with a part of a second, includes the record
    that happened then.  Raises WrongUsage."""
    moment = parse_moment(text)
    return AtTime(read(text).last) if text is not None and isinstance(moment, AtTime) else moment


def _check_zone(text: str) -> None:
    """Refuse a time to come that has no zone: it was probably read from another clock.  Raises WrongUsage."""
    if not read(text).zoned:
        here = datetime.now().astimezone().strftime("%z") or "+0000"
        offset = f"{here[:3]}:{here[3:5]}"
        raise WrongUsage(
            f"{text.strip()[:60]!r} has no zone, and in UTC it is yet to come: it is {shown(time.time_ns())}. Add the zone that "
            f"is meant, such as {offset if offset != '+00:00' else '+01:00'}, or Z for UTC",
            code="moment.no_zone",
        )


def clock_time(text: str | None) -> Callable[[ReadableLog], Awaitable[int | None]]:
    """Parse the moment of `--since` where clocks count (`replay.moments.parse_clock`); return what finds it, in UTC nanoseconds,
    None for the beginning.  Raises WrongUsage, and later MomentError for a record that is not on the log."""
    try:
        moment = None if text is None else parse_clock(text, time.time_ns())
    except MomentError as error:
        raise WrongUsage.of(error) from None

    async def find(log: ReadableLog) -> int | None:
        if moment is None or isinstance(moment, AtTime):  # as nearly always, without loading the fold
            return None if moment is None else moment.time
        from replay.travel.travel import clock_of

        return await clock_of(log, moment)

    return find


At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="SEQ|TIME|-10m",
        help="A sequence, a time (ISO 8601, UTC by default) or a duration before the log's last " "record; default: its end.",
    ),
]  # fmt: skip
File = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="LOG.dorm", help="Read an exported log instead of a cluster's; - is standard input."
    ),
]


async def own_app(name: str, file: Path | None, cx: Cluster) -> str:
    """Return the app or node that a command looks for: where several tenants of a cluster share the name, the id of the
    user's own app.  Raises NotFound if none of them is the user's."""
    if file is not None or not cx.target().credentials:
        return name
    from dorm.client.finding import find_app

    async with cx.client() as connected:
        user = connected.user
        return await connected.look(
            lambda state: find_app(state, name, user).id if len(state.namesakes(name)) > 1 else name
        )


@contextlib.asynccontextmanager
async def log_of(
    file: Path | None,
    cx: Cluster,
    *,
    folds: bool = True,
    salvages: bool = False,
    tells_damage: bool = False,
) -> AsyncIterator[ReadableLog]:
    """Yield the log that a command reads.  Errors of replay become one line.

    A damaged file is read up to the damage, which is reported; the command then ends with exit code 1, unless it handles that
    itself (`tells_damage`, `ReadableLog.torn`), or reads the intact parts behind it (`salvages`).  A command that does not need
    the state (no `folds`) also accepts a sparse archive.
    """
    from dorm.core.evolve import GapError
    from replay import ReplayError

    try:
        if file is None:
            async with cx.client() as connected:
                yield connected.log
            return
        async with _archive(file) as archive:
            if folds and archive.sparse:
                raise Fail(
                    f"{file} holds a selection of a log's records, from which no state follows; this needs a whole one "
                    "(`dorm events --file` and `dorm replay export --file` can read it)",
                    code="archive.sparse",
                )
            damages = await _damages_of(archive, file, complains=not tells_damage)
            async with _with_progress(await _readable(archive, damages, file, salvages=salvages), file) as log:
                yield log
    except (ReplayError, GapError) as error:
        raise Fail.of(error) from None


@contextlib.asynccontextmanager
async def _archive(file: Path) -> AsyncIterator[Archive]:
    from events.archive.segments import open_archive

    archive = await open_archive(file)
    try:
        yield archive
    finally:
        await archive.close()


@contextlib.asynccontextmanager
async def _with_progress(log: ReadableLog, file: Path) -> AsyncIterator[ReadableLog]:
    """Yield the log with the progress that lies beside its file, if there is any."""
    from events.archive.progress import ArchivedProgress, WithProgress, progress_path

    if str(file) == "-" or not progress_path(file).is_file():
        yield log
        return
    async with _archive(progress_path(file)) as progress:
        yield WithProgress(log, ArchivedProgress(progress))


async def _damages_of(archive: Archive, file: Path, *, complains: bool) -> list[Damage]:
    with progress_of("checking") as report:
        damages = await archive.damages(report)
    if complains:
        for damage in damages[:_MOST_DAMAGES]:
            report_error(line(Exception(_in_words(damage, file))), "archive.damaged")
        if len(damages) > _MOST_DAMAGES:
            report_error(f"{file} is damaged in {len(damages) - _MOST_DAMAGES} more places", "archive.damaged")
    return damages


def _in_words(damage: Damage, file: Path) -> str:
    text = str(damage)
    return text if str(file) in text else f"{file}: {text}"


async def _readable(archive: Archive, damages: list[Damage], file: Path, *, salvages: bool) -> ReadableLog:
    """Return all of it; if damaged, the part before the first lost record, or all intact parts."""
    from events.archive.damage import ReadablePart, WholeParts, readable_end
    from events.archive.segments import SegmentLog

    if not damages:
        return archive
    lost = [damage for damage in damages if damage.first]
    if lost and salvages and isinstance(archive, SegmentLog):
        return WholeParts(archive, damages)
    end = readable_end(lost, lost[0].first) if lost else await archive.end()
    return ReadablePart(archive, end, _in_words((lost or damages)[0], file))


def report_nothing_found(first: int, last: int, **wanted: Sequence[str]) -> None:
    """Report on standard error that nothing in records `first` to `last` matched (by option): silence would look like a
    failure."""
    if last < first:
        text = "there is no record in that time"
    else:
        conditions = " ".join(f"--{option} {value}" for option, values in wanted.items() for value in values)
        text = f"nothing in records {first} to {last} matches {conditions or 'that'}"
    with contextlib.suppress(BrokenPipeError):
        print_line(line(Exception(text)), error=True, flush=True)


@contextlib.contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console, transient=True, disable=not progress_console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
