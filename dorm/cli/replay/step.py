"""`dorm replay step`: walk through the log in the terminal, forward and back, the state beside the events."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_app, complete_node
from dorm.cli.errors import USAGE, Fail, WrongUsage
from dorm.cli.source import At, File, log_of, parse_at, progress_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from events.log.interface import ReadableLog
    from replay.moments import Moment
    from replay.travel.stepper import Stepper


def register(app: typer.Typer) -> None:
    """Register the command of `dorm replay`."""
    app.command("step")(step)


@command()
async def step(
    cx: Cluster,
    at: At = None,
    follow: Annotated[bool, typer.Option("--follow", help="Follow the log as it grows; while the cursor is at the end, it moves along.")] = False,
    app: Annotated[list[str] | None, typer.Option(metavar="APP", autocompletion=complete_app, help="Stop only at events about this app (name or id); may be repeated.")] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NODE", autocompletion=complete_node, help="Stop only at events about this node; may be repeated.")] = None,
    file: File = None,
) -> None:  # fmt: skip
    """Step through the log event by event, forward and back, with the state after each.

    The arrows, PgUp and PgDn step; d and f find the next decision and failure, /
    filters events, g goes to a sequence or a time, and ? shows all keys. Times
    are UTC.

    [bold]Examples[/]

      dorm replay step --at -10m

      dorm replay step --file incident.dorm --app digits-mlp

      dorm replay step --follow
    """
    if follow and file is not None:
        raise WrongUsage("--follow needs a cluster: a file does not grow", code="usage.conflict")
    moment = parse_at(at)
    _check_terminal()

    from dorm.cli.replay.step_screen import StepApp
    from replay.travel.search import Search

    search = Search(apps=tuple(app or ()), nodes=tuple(node or ()))
    name = cx.target().cluster if file is None else file.stem
    async with log_of(file, cx) as log:
        stepper = await _opened(log, "*" if file is not None else name, moment)
        screen = StepApp(log, stepper, name, search, follow=follow)
        with _ended_by(screen.exit):
            await screen.run_async()
    if code := screen.return_code or 0:
        raise typer.Exit(code)


async def _opened(log: ReadableLog, cluster: str, moment: Moment | None) -> Stepper:
    """Return a stepper at a moment."""
    from replay.travel.stepper import Stepper

    stepper = await Stepper.open(log, cluster=cluster)
    with progress_of("folding") as report:
        await stepper.go(moment, report)
    return stepper


@contextlib.contextmanager
def _ended_by(leave: Callable[[], None]) -> Iterator[None]:
    """Restore the terminal when the process is ended or its terminal is closed."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _in_terminal() -> bool:
    # What draws the screen writes it to standard error, and reads keys from standard input.
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _check_terminal() -> None:
    """Raises Fail without an interactive terminal, or if the library that draws is not installed."""
    if not _in_terminal():
        raise Fail(
            "stepping needs a terminal; in a pipe, `dorm state --at` has the state at any moment and `dorm events` what "
            "happened",
            USAGE,
            code="usage.no_terminal",
        )
    if find_spec("textual") is None:
        raise Fail("stepping needs textual: pip install 'dorm[tui]'", code="package.missing")
