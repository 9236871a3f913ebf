"""`dorm incident`: one folder about what happened, for a ticket."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import WrongUsage
from dorm.cli.output import console, counted, solver_prints_elsewhere
from dorm.cli.replay.state import Moments
from dorm.cli.source import File, log_of, parse_moment, progress_of

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
    from replay.incident.folder import write

    async with log_of(file, cx) as log:
        with progress_of("reading") as report, solver_prints_elsewhere():
            found = await write(
                log, path, begin, end, before_s=before_s, disguised=disguise, page=page, progress=report
            )
    told = f"{counted(len(found.stories), 'story')}".replace("storys", "stories")
    console.print(
        Text(f"{path}: records {found.first + 1} to {found.last}, {told}; begin with {path / 'README.md'}"),
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
