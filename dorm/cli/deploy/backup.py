"""`dorm backup`: a checked copy of the log in a folder of copies."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.output import Format, Output, console, counted, show_document
from dorm.cli.source import log_of, progress_of
from dorm.cli.terminal import say


@command()
async def backup(
    cx: Cluster,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the copies, preferably on another machine's disk.")
    ],
    keep: Annotated[int, typer.Option(min=1, max=10_000, help="Number of copies of this cluster to keep.")] = 14,
    metrics: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.prom",
            help="Also write the time of the backup to this file, for the textfile collector of "
            "Prometheus's node exporter.",
        ),
    ] = None,
    without_files: Annotated[
        bool, typer.Option("--without-files", help="Do not copy shipped project folders.")
    ] = False,
    output: Output = Format.table,
) -> None:
    """Copy the log and the shipped folders into a folder, read the copy back, and remove the oldest copies.

    All copies share the parts of shipped folders. The cluster keeps running
    meanwhile. If a copy cannot be read back completely, the command ends with an
    error and removes no older copy. `dorm replay import FILE` makes a copy the
    log of a new cluster; `dorm deploy restore` restores a cluster that
    authenticates its users. Copies that are later than the new one, because a
    clock was ahead, neither count for --keep nor are they removed.

    [bold]Examples[/]

      dorm backup /mnt/backups

      dorm backup /mnt/backups --keep 30 --context lab

      dorm backup /mnt/backups --without-files
    """

    from dorm.deploy.backups import back_up, report
    from events.quantities import MEMORY, humanize

    name = cx.target().cluster
    async with log_of(None, cx, folds=False) as log, cx.client() as connected:
        began, files = time.time_ns(), None if without_files else connected.log.files
        with progress_of("copying") as progress:
            done = await back_up(log, folder, name, keep=keep, now=began, files=files, progress=progress)
    if metrics is not None:
        await asyncio.to_thread(report, done, name, began, metrics)
    if output in (Format.json, Format.yaml):
        show_document(done, output)
        return
    went = f"; {len(done.removed)} older removed" if done.removed else ""
    text = f"{done.records:,} records are in {done.file} ({done.bytes:,} bytes), read back; digest {done.digest}{went}"
    console.print(Text(text), soft_wrap=True)
    if done.ahead:
        count = "1 copy is" if len(done.ahead) == 1 else f"{len(done.ahead)} copies are"
        say(
            f"warning: {count} later than this one, such as {done.ahead[-1]}: some clock was wrong. --keep neither counts nor "
            "removes them; remove those of the future by hand",
            error=True,
        )
    if done.shipped is not None:
        size = humanize(MEMORY, done.shipped.bytes)
        console.print(Text(f"{counted(done.shipped.parts, 'part')} of shipped folders, {size}, are next to it"))
