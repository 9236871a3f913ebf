"""The files of an app: `dorm cp` copies them from and to it as APP:PATH, `dorm checkpoints` lists what it has saved."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster, complete_app
from dorm.cli.errors import WrongUsage
from dorm.cli.output import Format, Output, ago, console, counted, progress_console, show, show_document
from dorm.cli.tables import when
from dorm.cli.terminal import one_line, print_line
from events.copying import AREAS
from events.quantities import MEMORY, humanize

if TYPE_CHECKING:
    from dorm.client.checkpoints import CheckpointFile, Checkpoints
    from dorm.client.files import Copied, Files, FilesRefused
    from events.copying import Area


# --- APP[/RANK]:PATH --------------------------------------------------------------------------------------------------

_REMOTE = re.compile(r"(?P<app>[A-Za-z0-9][A-Za-z0-9_-]*)(?:/(?P<rank>[0-9]{1,6}))?:(?P<path>.*)", re.DOTALL)
_INSIDE = re.compile(r"/dorm/(outputs|checkpoints)(?:/|$)")


class Named(NamedTuple):
    """A place in one of an app's folders."""

    app: str
    rank: int | None
    area: Area
    path: str


def named(word: str) -> Named | None:
    """Return the file that a word names, None if it is a path on this machine.  The path's first name says which folder
    is meant; without one of these names it is the outputs.  Raises WrongUsage."""
    match = _REMOTE.fullmatch(word)
    if match is None:
        return None
    path = match["path"]
    if inside := _INSIDE.match(path):
        path = inside[1] + "/" + path[inside.end() :]
    if path.startswith("/"):
        raise WrongUsage(
            f"{word}: a path begins with {', '.join(AREAS)}, or is one in the outputs; images and nodes are not copied from",
            code="files.path.outside",
        )
    first, _, rest = path.partition("/")
    area = next((area for area in AREAS if area == first), None)
    rank = int(match["rank"]) if match["rank"] else None
    if area is None:
        area, rest = "outputs", path
    if rank is not None and area != "work":
        raise WrongUsage(
            f"{word}: all ranks share the {area}; leave out /{rank}, or name what is in its own folder with "
            f"{match['app']}/{rank}:work/…",
            code="usage.conflict",
        )
    return Named(match["app"], rank, area, rest)


# --- cp ---------------------------------------------------------------------------------------------------------------

_FILES = [("PATH", "path"), ("KIND", "kind"), ("SIZE", "bytes"), ("NOTE", "note")]


def _places(context: typer.Context, incomplete: str) -> list[str]:
    if "/" in incomplete or incomplete.startswith("."):
        return []
    return [f"{name}:" for name in complete_app(context, incomplete.partition(":")[0])]


@command()
async def copy(
    cx: Cluster,
    source: Annotated[str, typer.Argument(help="APP\\[/RANK]:PATH, or a local path.", autocompletion=_places)],
    target: Annotated[str, typer.Argument(help="The target: a local path, or APP:PATH.", autocompletion=_places)] = "",
    every: Annotated[bool, typer.Option("--list", "-l", help="List the files; copy nothing.")] = False,
    output: Output = Format.table,
) -> None:
    """Copy files and folders from an app to this machine, or from this machine to an app.

    PATH begins with its folder: `outputs` (DORM_OUTPUTS, the default),
    `checkpoints`, or `work`, the private folder of the container with this rank,
    which exists while the container is kept.

    A file appears under its name when it is complete and its digest is correct.
    Repeat an interrupted copy to continue it; existing files with the same size
    and time are skipped. If the target is a folder, the copy goes into it.

    You can copy only to your own tenant's apps, into outputs and checkpoints.

    [bold]Examples[/]

      dorm cp digits-mlp:model.pt .

      dorm cp digits-mlp:outputs results

      dorm cp digits-mlp/1:work/trace.json .

      dorm cp weights.pt digits-mlp:checkpoints/

      dorm cp --list digits-mlp:checkpoints
    """
    from_app, to_app = named(source), named(target) if target else None
    if every:
        if from_app is None or target:
            raise WrongUsage("--list takes one APP:PATH and no target", code="usage.conflict")
        await _list(from_app, output, cx)
        return
    if not target:
        raise WrongUsage("say where to copy it: `dorm cp APP:PATH .`; --list shows what is there", code="usage.missing")
    if (from_app is None) == (to_app is None):
        raise WrongUsage(
            "one of the two is APP:PATH and the other a path on this machine; write ./ before a path that has a colon",
            code="usage.conflict",
        )
    await _copy(from_app, to_app, Path(source), Path(target), cx)


async def _list(place: Named, output: Format, cx: Cluster) -> None:
    from dorm.client.files import Files

    async with cx.client() as connected:
        files = Files(connected)
        where = await files.find(place.app, place.area, rank=place.rank)
        entries = await files.listed(where, place.path)
    rows: list[dict[str, Any]] = [
        {**msgspec.to_builtins(entry), "bytes": humanize(MEMORY, entry.size) if entry.kind == "file" else None}
        for entry in entries
        if entry.path or entry.kind == "file"
    ]
    if output in (Format.json, Format.yaml):
        show([{name: value for name, value in row.items() if name != "bytes"} for row in rows], _FILES, output)
    elif rows:
        named_rows = [{**row, "path": row["path"] or place.path.rpartition("/")[2]} for row in rows]
        show(named_rows, _FILES if any(row.get("note") for row in rows) else _FILES[:3], output)
    else:
        print_line(f"nothing is in {place.app}:{place.area}/{place.path}".rstrip("/"), error=True)


async def _copy(from_app: Named | None, to_app: Named | None, source: Path, target: Path, cx: Cluster) -> None:
    from dorm.client.files import Files, FilesRefused, copy_from, copy_to

    place = from_app or to_app
    assert place is not None
    async with cx.client() as connected:
        files = Files(connected)
        where = await files.find(place.app, place.area, rank=place.rank)
        with _bar(place.app) as bar:
            if from_app is not None:
                try:
                    done = await copy_from(files, where, place.path, target, bar)
                except FilesRefused as error:
                    raise await _with_namesake(files, place, error) from None
            else:
                done = await copy_to(files, source, where, place.path, bar)
    _print_copied(done)


async def _with_namesake(files: Files, place: Named, error: FilesRefused) -> FilesRefused:
    """Return the error; of a path that is not in the outputs, with the checkpoint of that name if there is one."""
    from dorm.client.files import FilesRefused

    if place.area != "outputs" or not place.path or error.code != "files.not_found":
        return error
    try:
        await files.listed(await files.find(place.app, "checkpoints"), place.path)
    except FilesRefused:
        return error
    return FilesRefused(
        f"{place.path} is not among the outputs of {place.app}; a checkpoint has that name: "
        f"`dorm cp {place.app}:checkpoints/{place.path} .`",
        code=error.code,
    )


def _print_copied(done: Copied) -> None:
    more = f"; {counted(done.unchanged, 'file')} already there" if done.unchanged else ""
    more += f"; {done.skipped} left out" if done.skipped else ""
    console.print(f"copied {counted(done.files, 'file')}, {humanize(MEMORY, done.size)}{more}")


@contextlib.contextmanager
def _bar(app: str) -> Iterator[Any]:
    """Show a progress bar on standard error, if that is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    from dorm.client.files import Progress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=progress_console, transient=True, disable=not progress_console.is_terminal) as drawn:
        task = drawn.add_task(app, total=None)

        class Shown(Progress):
            def plan(self, files: int, size: int) -> None:
                drawn.update(task, total=size, description=f"{app}: {counted(files, 'file')}")

            def done(self, size: int) -> None:
                drawn.advance(task, size)

            def skip(self, path: str, why: str) -> None:
                print_line(f"left out: {one_line(path)}: {why}", error=True)

        yield Shown()


# --- checkpoints ------------------------------------------------------------------------------------------------------

_COLUMNS = [
    ("PATH", "path"), ("STEP", "step"), ("SIZE", "size"), ("FILES", "files"), ("AGE", "age"), ("GENERATION", "generation"),
    ("RESTART", "restart"),
]  # fmt: skip


@command()
async def list_checkpoints(cx: Cluster, app: AppName, output: Output = Format.table) -> None:
    """List the checkpoints that an app has saved: path, step, size, age, the generation that wrote each, and where a
    restart would resume.

    The step comes from the file's name if that contains a step that the app
    reported. `~` marks a step derived from the file's time instead. Only reported
    checkpoints count for a restart; the app decides which file it then reads.
    `doubtful` marks a file that changed after the last report, as when a container
    is killed while it saves; `dorm restart APP --fall-back` sets it aside.

    [bold]Examples[/]

      dorm checkpoints digits-mlp

      dorm checkpoints digits-mlp -o json
    """

    from dorm.client.checkpoints import checkpoints_of
    from dorm.client.files import Files

    async with cx.client() as connected:
        checkpoints = await checkpoints_of(connected, Files(connected), app)
    if output in (Format.json, Format.yaml):
        show_document(checkpoints, output)
        return
    now = time.time_ns()
    if checkpoints.checkpoints:
        show([_row(checkpoint, now) for checkpoint in checkpoints.checkpoints], _COLUMNS, output)
    console.print(_restart(checkpoints, now))
    if checkpoints.doubt is not None:
        console.print(Text(f"doubtful: {checkpoints.doubt['text']}", style="yellow"))
        if checkpoints.doubt["advice"]:
            console.print(Text(checkpoints.doubt["advice"]))
    if checkpoints.kept_until is not None:
        console.print(f"kept until {when(checkpoints.kept_until)}, with the outputs")


def _row(checkpoint: CheckpointFile, now: int) -> dict[str, Any]:
    step = f"~{checkpoint.step}" if checkpoint.step_by == "time" else checkpoint.step
    return {
        **msgspec.structs.asdict(checkpoint),
        "step": step,
        "size": humanize(MEMORY, checkpoint.size),
        "age": ago(max(0, now - checkpoint.modified) / 1e9),
        "restart": "doubtful" if checkpoint.doubtful else "resumes here" if checkpoint.used else None,
    }


def _restart(checkpoints: Checkpoints, now: int) -> str:
    if checkpoints.restart_step is None:
        why = "the app has reported no checkpoint" if not checkpoints.reports else "none that was reported counts"
        return f"{why}, so a restart begins from nothing, with `command`"
    by = ""
    if checkpoints.restart_generation is not None and checkpoints.restart_at is not None:
        by = f", which generation {checkpoints.restart_generation} reported {ago((now - checkpoints.restart_at) / 1e9)} ago"
    more = "" if checkpoints.checkpoints else "; its folder holds no file"
    return f"a restart would resume from step {checkpoints.restart_step}{by} ({counted(checkpoints.reports, 'report')} on the log){more}"
