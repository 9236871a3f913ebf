"""`dorm incident`: one folder about what happened, for a ticket."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.connect import ClusterName, Url, where
from dorm.cli.errors import WrongUsage, run
from dorm.cli.output import console, counted, solver_prints_elsewhere
from dorm.cli.replay.state import Moments
from dorm.cli.source import File, log_of, parse_moment, progress_of

if TYPE_CHECKING:
    from replay.incident import Incident

PANEL = "The log"
_MOMENT = "SEQ|TIME|-10m"


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL, cls=Moments)(incident)


def incident(
    since: Annotated[str, typer.Argument(metavar="SINCE", help="Start of the incident: a sequence, a time (ISO 8601, UTC by default) or a duration " "before the log's last record, such as -10m.", show_default=False)],
    until: Annotated[str | None, typer.Option("--to", metavar=_MOMENT, help="End of the incident; default: the log's end.")] = None,
    before: Annotated[str, typer.Option(metavar="DURATION", help="How long before the start to look for changes.")] = "1h",
    folder: Annotated[Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Folder to write, which must not exist; default: incident-CLUSTER-TIME.")] = None,
    disguise: Annotated[bool, typer.Option("--disguise", help="For outsiders: replace users, apps, nodes, images, commands, variables, labels and " "addresses with pseudonyms, and drop messages. Takes about as long as an audit of that " "period.")] = False,
    file: File = None,
    url: Url = None,
    cluster: ClusterName = None,
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
    path = folder or Path(
        f"incident-{_name(file, url, cluster)}-{datetime.fromtimestamp(time.time(), UTC):%Y%m%d-%H%M%S}"
    )

    async def work() -> Incident:
        from dorm.web.offline import page
        from replay.incident import write

        async with log_of(file, url, cluster) as log:
            with progress_of("reading") as report, solver_prints_elsewhere():
                return await write(
                    log, path, begin, end, before_s=before_s, disguised=disguise, page=page, progress=report
                )

    found: Incident = run(work())
    told = f"{counted(len(found.stories), 'story')}".replace("storys", "stories")
    console.print(
        Text(f"{path}: records {found.first + 1} to {found.last}, {told}; begin with {path / 'README.md'}"),
        soft_wrap=True,
    )


def _name(file: Path | None, url: str | None, cluster: str | None) -> str:
    return where(url, cluster)[1] if file is None else "log" if str(file) == "-" else file.stem


def _length(text: str) -> float:
    from events.errors import code_of
    from events.quantities import duration

    try:
        return duration(text)
    except ValueError as error:
        raise WrongUsage(f"--before: {error}", code=code_of(error)) from None
