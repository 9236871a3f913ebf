"""`dorm deploy restore`: a backup becomes the log of a cluster that knows its users, on its own servers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.deploy.shared import Keys, Settings, key_folder, read
from dorm.cli.errors import Fail, run
from dorm.cli.output import console, counted
from dorm.cli.source import log_of, progress_of


def restore(
    settings: Settings,
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="A backup: an archive of the whole log.")],
    keys: Keys,
    without_files: Annotated[
        bool, typer.Option("--without-files", help="Do not copy shipped project folders.")
    ] = False,
) -> None:
    """Restore the log of a cluster from a backup, to running and empty NATS servers.

    Run it on the admin's machine, with masters and agents stopped. Keys, users
    and nodes are those at the end of the backup; later decisions are lost. The
    shipped folders next to the backup are restored too. To continue an
    interrupted import, run the command again.

    [bold]Example[/]

      dorm deploy restore deploy.yaml /mnt/backups/lab-20260314T030007.512Z.dorm --keys /root/lab
    """
    deployment = read(settings)
    if not deployment.trust:
        raise Fail(
            "a cluster with `trust: false` is restored by `dorm replay import`, and its masters then need --replicas once",
            2,
            code="deploy.keys.open",
        )

    async def work() -> None:
        from dorm.deploy import layout
        from dorm.deploy.backups import restore_log, restore_shipped
        from events.quantities import MEMORY, humanize

        async with log_of(archive, None, None) as log:
            if await log.torn():
                raise Fail("nothing was restored; take an earlier backup", code="archive.damaged")
            with progress_of("restoring") as report:
                done = await restore_log(log, deployment, key_folder(keys), clock=time.time_ns, progress=report)
                shipped = (
                    None if without_files else await restore_shipped(archive, deployment, key_folder(keys), report)
                )
        console.print(
            Text(f"{done.records:,} records are the log of cluster {deployment.cluster}; digest {done.digest}"),
            soft_wrap=True,
        )
        if shipped is not None:
            size = humanize(MEMORY, shipped.bytes)
            console.print(Text(f"{counted(shipped.parts, 'part')} of shipped folders, {size}, are restored"))
        console.print(
            Text(
                f"next, on each master's machine: rm -f {layout.MASTER}/seal.seen; systemctl start dorm-master",
                style="dim",
            ),
            soft_wrap=True,
        )

    run(work())
