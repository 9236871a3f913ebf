"""`dorm replay open`: the dashboard and the API of an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.cluster.serve import address_of
from dorm.cli.command import standalone
from dorm.cli.connect import Cluster
from dorm.cli.output import console
from dorm.cli.signals import run_until_stopped
from dorm.cli.source import log_of


def register(app: typer.Typer) -> None:
    """Register the command of `dorm replay`."""
    app.command("open")(open_archive)


@standalone
async def open_archive(
    file: Annotated[Path, typer.Argument(metavar="LOG.dorm", help="An exported log.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="Address to listen on; port 0 takes any free one.")
    ] = "127.0.0.1:0",
) -> None:
    """Serve an exported log on this machine as if its cluster existed.

    The dashboard shows any moment of the log, and the API answers every question
    about it, including what-if questions. Requests that would change something
    are refused. The command ends on Ctrl-C.

    [bold]Examples[/]

      dorm replay open incident.dorm

      dorm replay open incident.dorm --listen 127.0.0.1:4280
    """
    from dorm.api.options import Options

    host, port = address_of(listen)
    options = Options(host=host, port=port, archive=file.stem)

    async def work() -> None:
        from dorm.api.following.archived import ArchivedCluster
        from dorm.api.serving import serving

        async with log_of(file, Cluster()) as log, serving(ArchivedCluster(log), options) as server:
            console.print(Text(f"{file} is at {server.url}; Ctrl-C ends it"), soft_wrap=True)
            await server.run()

    await run_until_stopped(work())
