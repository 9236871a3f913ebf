"""`dorm replay timeline`: what happened, as a picture or a trace for Perfetto; as a page it is the dashboard's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_app, complete_node
from dorm.cli.errors import WrongUsage
from dorm.cli.output import console, counted, progress_console
from dorm.cli.replay.page import PAGES, write
from dorm.cli.source import File, log_of, parse_moment, progress_of

if TYPE_CHECKING:
    from replay.timeline.model import Timeline

_MOMENT = "SEQ|TIME|-10m"
_NEEDS = {**dict.fromkeys(PAGES, ""), ".png": "matplotlib", ".json": ""}
"""By file extension, the package of an extra that draws it."""


def register(app: typer.Typer) -> None:
    """Register the command of `dorm replay`."""
    app.command("timeline")(timeline)


def _target(path: Path) -> Path:
    if str(path) != "-" and path.suffix.lower() not in _NEEDS:
        raise WrongUsage(
            f"{path}: name a file that ends in .html, .png or .json, or - for JSON on standard output",
            code="usage.file_name",
        )
    return path


@command()
async def timeline(
    cx: Cluster,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", callback=_target, help="File to write: .html (a page), .png (a picture), .json (a trace for ui.perfetto.dev); - " "prints the JSON to standard output.")],
    since: Annotated[str | None, typer.Option(metavar=_MOMENT, help="Start at this moment: a sequence, a time, or a duration before the log's last record; " "default: the log's start.")] = None,
    until: Annotated[str | None, typer.Option(metavar=_MOMENT, help="End at this moment; default: the log's end.")] = None,
    app: Annotated[list[str] | None, typer.Option(metavar="APP", autocompletion=complete_app, help="Only this app (name or id) and its nodes; may be repeated.")] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NODE", autocompletion=complete_node, help="Only this node and its apps; may be repeated.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    file: File = None,
) -> None:  # fmt: skip
    """Draw what happened: partitions over time, adjustments, failures, decisions with their reasons.

    The page is that of `dorm replay page`: one file with the dashboard of every
    moment. The JSON opens in ui.perfetto.dev.

    [bold]Examples[/]

      dorm replay timeline -o incident.html --since -2h

      dorm replay timeline -o report.png --file incident.dorm --app digits-mlp

      dorm replay timeline -o trace.json --since 2026-11-21T09:00 --until 2026-11-21T10:00
    """
    begin, end = parse_moment(since), parse_moment(until)
    if output.suffix.lower() in PAGES:
        if app or node:
            raise WrongUsage(
                "a page shows all apps and nodes, and finds them by name; leave out --app and --node, or write a .png",
                code="usage.conflict",
            )
        await write(output, begin, end, force=force, file=file, cx=cx)
        return

    from replay.timeline.fold import timeline as fold
    from replay.timeline.model import need, only
    from replay.whole_file import in_thread, whole_file

    name = cx.target().cluster if file is None else "a log" if str(file) == "-" else file.stem
    title = f"dorm · {name}"
    async with log_of(file, cx) as log:
        need(_NEEDS.get(output.suffix.lower(), ""))
        async with whole_file(output, force=force) as target:
            with progress_of("folding") as report:
                picture = await fold(log, begin, end, names=app or (), progress=report)
            picture = only(picture, app or (), node or ())
            drawn = await asyncio.to_thread(_draw, picture, output.suffix.lower(), title)
            await in_thread(target.write, drawn)
    if str(output) != "-":
        console.print(f"{counted(len(picture.apps), 'app')}, {counted(len(picture.nodes), 'node')} and "
                      f"{counted(len(picture.decisions), 'decision')} "
                      f"are in {output} ({len(drawn):,} bytes)", markup=False)  # fmt: skip
    elif progress_console.is_terminal:
        progress_console.print("open it at https://ui.perfetto.dev", markup=False)


def _draw(picture: Timeline, ending: str, title: str) -> bytes:
    """Return the whole file.  The drawing library is imported only now."""
    if ending == ".png":
        from replay.timeline.png import png

        return png(picture, title)
    from replay.timeline.trace import trace

    return trace(picture, title).encode("utf-8", "replace")
