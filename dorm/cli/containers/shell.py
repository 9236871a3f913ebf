"""`dorm shell`: a shell in a container of an app."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.containers.naming import Container, split
from dorm.cli.errors import WrongUsage
from dorm.cli.output import progress_console

if TYPE_CHECKING:
    from dorm.client.sessions.finding import Place

_BEST: Final = ("sh", "-c", "command -v bash > /dev/null && exec bash; exec sh")


@command(user=True)
async def shell(
    cx: Cluster,
    container: Container,
    program: Annotated[
        str | None,
        typer.Option("--shell", metavar="PROGRAM", help="The shell; default: bash, or sh if there is no bash."),
    ] = None,
) -> None:
    """Open a shell in a container of an app, next to its program.

    The shell has its own terminal of the same size. Ctrl-D or `exit` ends the
    shell and everything that was started in it; so does closing the local
    terminal. `dorm exec` runs a single command, also in scripts.

    [bold]Examples[/]

      dorm shell train

      dorm shell train/3 --shell python3
    """
    from dorm.cli.containers.attaching import Attached, on_terminal
    from dorm.cli.containers.streams import terminal_size

    app, rank = split(container)
    if not on_terminal():
        raise WrongUsage(
            f"a shell needs a terminal; in a script use `dorm exec {container} -- COMMAND`", code="usage.no_terminal"
        )

    async with cx.client() as connected:
        # Imported last, as `client` says.
        from dorm.client.sessions.finding import running_place
        from dorm.client.sessions.session import Session

        place = running_place(await connected.app(app), rank)
        _print_where(place)
        words = (program,) if program else _BEST
        term = os.environ.get("TERM", "")
        session = Session(connected, place, "shell", words, terminal=terminal_size(), term=term)
        code = await Attached(session, with_input=True).run_on_terminal(0)
    if code:
        raise typer.Exit(code)


def _print_where(place: Place) -> None:
    progress_console.print(f"{place} on node {place.node}; Ctrl-D leaves it", markup=False, highlight=False)
