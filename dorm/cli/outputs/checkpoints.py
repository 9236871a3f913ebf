"""`dorm checkpoints`: what an app has saved, and where it would resume."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster
from dorm.cli.output import Format, Output, ago, console, counted, show, show_document
from dorm.cli.tables import when
from events.quantities import MEMORY, humanize

if TYPE_CHECKING:
    from dorm.client.files.checkpoints import CheckpointFile, Checkpoints

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

    from dorm.client.files.asking import Files
    from dorm.client.files.checkpoints import checkpoints_of

    async with cx.client() as connected:
        found = await checkpoints_of(connected, Files(connected), app)
    if output in (Format.json, Format.yaml):
        show_document(found, output)
        return
    now = time.time_ns()
    if found.checkpoints:
        show([_row(one, now) for one in found.checkpoints], _COLUMNS, output)
    console.print(_restart(found, now))
    if found.doubt is not None:
        console.print(Text(f"doubtful: {found.doubt['text']}", style="yellow"))
        if found.doubt["advice"]:
            console.print(Text(found.doubt["advice"]))
    if found.kept_until is not None:
        console.print(f"kept until {when(found.kept_until)}, with the outputs")


def _row(one: CheckpointFile, now: int) -> dict[str, Any]:
    step = f"~{one.step}" if one.step_by == "time" else one.step
    return {
        **msgspec.structs.asdict(one),
        "step": step,
        "size": humanize(MEMORY, one.size),
        "age": ago(max(0, now - one.modified) / 1e9),
        "restart": "doubtful" if one.doubtful else "resumes here" if one.used else None,
    }


def _restart(found: Checkpoints, now: int) -> str:
    if found.restart_step is None:
        said = "the app has reported no checkpoint" if not found.reports else "none that was reported counts"
        return f"{said}, so a restart begins from nothing, with `command`"
    by = ""
    if found.restart_generation is not None and found.restart_at is not None:
        by = f", which generation {found.restart_generation} reported {ago((now - found.restart_at) / 1e9)} ago"
    more = "" if found.checkpoints else "; its folder holds no file"
    return f"a restart would resume from step {found.restart_step}{by} ({counted(found.reports, 'report')} on the log){more}"
