"""`dorm exec`: a command in a container of an app."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.containers.naming import Container, split
from dorm.cli.errors import WrongUsage
from dorm.cli.sizes import seconds_of


@command(user=True, context_settings={"allow_interspersed_args": False})
async def exec_command(
    cx: Cluster,
    container: Container,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The program, and its arguments.")],
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Allocate a terminal, as `dorm shell` does.")] = False,
    no_input: Annotated[
        bool, typer.Option("--no-input", "-n", help="Use an empty standard input; for loops in shell scripts.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Kill the command after this time, such as 30s or 5m; default: never."),
    ] = None,
) -> None:
    """Run a command in a container of an app, next to its program.

    The command has the container's user, environment and folder. Its input,
    output and errors are those of `dorm exec`, and so is its exit status; Ctrl-C
    is passed on. It is killed when `dorm exec` ends, when the container ends, and
    when the node's agent dies.

    The app's users, operators and admins may do this. The log records the user
    and the command (`dorm events --kind SessionStarted`).

    The exit status is that of the command, 124 if the time ran out, 127 if there
    is no such program, and 1 if the container has ended or does not run.

    [bold]Examples[/]

      dorm exec train -- nvidia-smi

      dorm exec train/2 -- py-spy dump --pid 1

      dorm exec train -- tar c logs | tar x
    """
    from dorm.cli.containers.attaching import Attached, on_terminal
    from dorm.cli.containers.streams import terminal_size

    app, rank = split(container)
    if command and command[0] == "--":
        command = command[1:]
    if not command or not command[0]:
        raise WrongUsage("COMMAND: name a program, as in `dorm exec train -- ls`", code="usage.nothing_to_do")
    seconds = seconds_of("--timeout", timeout)
    if tty and (no_input or not on_terminal()):
        raise WrongUsage("--tty needs this command's input and output to be a terminal", code="usage.no_terminal")

    async with cx.client() as connected:
        # Imported last, as `client` says.
        from dorm.client.sessions.finding import running_place
        from dorm.client.sessions.session import Session

        place = running_place(await connected.app(app), rank)
        if tty:
            size, term = terminal_size(), os.environ.get("TERM", "")
            session = Session(connected, place, "exec", command, terminal=size, term=term)
            code = await Attached(session, with_input=True).run_on_terminal(0, seconds)
        else:
            session = Session(connected, place, "exec", command)
            code = await Attached(session, with_input=not no_input).run(seconds)
    if code:
        raise typer.Exit(code)
