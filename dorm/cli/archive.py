"""`dorm replay export` and `import`: a log as a file, and a file as a cluster's log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.connect import ClusterName, Url, complete_app, where
from dorm.cli.errors import run
from dorm.cli.output import Format, Output, console, progress_console, show_document
from dorm.cli.source import File, log_of, parse_moment, progress_of
from replay.export import FileFormat

if TYPE_CHECKING:
    from replay.export import Exported

_MOMENT = "SEQ|TIME|-10m"


def register(app: typer.Typer) -> None:
    """As commands of `dorm replay`."""
    app.command("export")(export_log)


def export_log(
    target: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="File to write, - for standard output; default: the cluster's name with .dorm.")] = None,
    form: Annotated[FileFormat | None, typer.Option("--format", help="What to write; default: by the file's ending (.dorm, .parquet, .ndjson or .jsonl, these also with .gz or .zst), else an archive.")] = None,
    since: Annotated[str | None, typer.Option(metavar=_MOMENT, help="Only from this sequence or time on, or from so long before the log's last record; an archive then begins with the state there.")] = None,
    until: Annotated[str | None, typer.Option(metavar=_MOMENT, help="Only up to this moment, itself included.")] = None,
    app: Annotated[list[str] | None, typer.Option(metavar="APP", autocompletion=complete_app, help="Only what concerns this app (its name or id); may be repeated. Such an archive can be read, but not folded.")] = None,
    user: Annotated[list[str] | None, typer.Option(metavar="USER", help="Only what this user asked for, and what concerns this user's apps; may be repeated.")] = None,
    salvage: Annotated[bool, typer.Option("--salvage", help="Of a damaged file also what is whole behind the damage.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    file: File = None,
    output: Output = Format.table,
    url: Url = None,
    cluster: ClusterName = None,
) -> None:  # fmt: skip
    """Copy the log into a file: an archive, which every command that has --file reads, or rows for analysis.

    An archive holds the records byte for byte, compressed and checksummed,
    with snapshots of the state. Parquet (needs the extra `arrow`), lines of
    JSON and CloudEvents have one event in each row. The file is there whole,
    or not at all.

    [bold]Examples[/]

      dorm replay export incident.dorm --since -2h

      dorm replay export events.parquet --user alice

      dorm replay export --file incident.dorm - --format ndjson | jq .kind

      ssh host dorm replay export - > copy.dorm
    """
    from replay.selection import Selection

    selection = Selection(
        since=parse_moment(since), until=parse_moment(until), apps=tuple(app or ()), users=tuple(user or ())
    )

    async def work() -> None:
        from replay.export import export

        async with log_of(file, url, cluster, folds=False, salvages=salvage) as log:
            path = target or Path(f"{where(url, cluster)[1] if file is None else file.stem + '-copy'}.dorm")
            with progress_of("exporting") as report:
                done = await export(log, path, selection=selection, form=form, force=force, progress=report)
        _show(done, output)

    run(work())


def _show(done: Exported, output: Format) -> None:
    piped = done.file == "-"
    if output in (Format.json, Format.yaml) and not piped:
        show_document(done, output)
        return
    what = f"{done.records:,} records" if done.rows is None else f"{done.rows:,} events of {done.records:,} records"
    if done.last - done.first + 1 > done.records:
        what += f" (of {done.first} to {done.last})"
    text = f"{what} are in {'standard output' if piped else f'{done.file} ({done.bytes:,} bytes)'}"
    if piped:
        # Standard output is the file.
        if sys.stderr.isatty():
            progress_console.print(Text(text), soft_wrap=True)
    else:
        console.print(Text(text), soft_wrap=True)
