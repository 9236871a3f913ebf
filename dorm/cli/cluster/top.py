"""`dorm top`: nodes, partitions and recent events of a cluster, as they change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_app
from dorm.cli.output import console
from dorm.cli.signals import first_of, stops
from events.positions import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dorm.cli.cluster.top_view import Look, Recent
    from dorm.client.client import Client
    from dorm.core.state import State

_FRAME_S = 0.125
"""The shortest time between two pictures."""
_TICK_S = 1.0
"""The longest: ages grow."""
_BEFORE = 50
"""Earlier events that are shown at the start."""


@command()
async def top(
    cx: Cluster,
    app: Annotated[
        str | None,
        typer.Argument(metavar="[APP]", help="Only this app, by rank.", autocompletion=complete_app),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the state once and exit; also if standard output is not a terminal.")
    ] = False,
) -> None:
    """Watch the cluster: its nodes, every app's partition, and events.

    Keys: the arrows choose an app and Enter opens it, s sorts, / filters, ? shows
    the other keys, q quits. The command follows the log, so it shows a resize
    when it happens, and sends no requests to other processes.

    With an APP, it shows the resource use of each of the app's containers next to
    the app's progress.

    [bold]Examples[/]

      dorm top

      dorm top --once | grep waiting

      dorm top digits-mlp
    """

    from dorm.cli.cluster.top_view import Look

    async with cx.client() as connected:
        if app is not None:
            await _of_app(connected, app, once=once)
            return
        look = Look()
        if once or not (console.is_terminal and sys.stdin.isatty()):
            await _print(connected, look)
            return
        connected.report_outages(lambda lost: setattr(look, "lost", lost))
        with stops() as events:
            await first_of(_Screen(connected, look, cx.target().cluster).run(), events.first.wait())


async def _of_app(connected: Client, name: str, *, once: bool) -> None:
    from dorm.cli.containers.top_app import print_app, watch_app

    if once or not (console.is_terminal and sys.stdin.isatty()):
        await print_app(connected, name)
        return
    with stops() as events:
        await first_of(watch_app(connected, name, keys), events.first.wait())


async def _print(connected: Client, look: Look) -> None:
    """Whole, however wide the lines are: a pipe cuts nothing."""
    from dorm.cli.cluster.top_view import picture

    state = await connected.state()
    look.newest = await connected.reported()
    recent = await _recent(connected)
    height = 40 + len(state.nodes) + 2 * len(state.apps)
    now = max(state.time, time.time_ns())
    for line in picture(state, recent, look, cluster=connected.cluster, now=now, width=10_000, height=height):
        console.print(line, soft_wrap=True)


async def _recent(connected: Client) -> Recent:
    """Return the latest events so far."""
    from dorm.cli.cluster.top_view import NOISE, Recent
    from dorm.client.tail import Filter, Tail, before_last
    from dorm.core.query.concerns import KINDS

    wanted = Filter(kinds=tuple(kind for kind in KINDS if kind not in NOISE))
    end = await connected.log.end()
    begin = await before_last(connected.log, connected.cluster, wanted, _BEFORE, end)
    recent = Recent()
    found = Tail(connected.log, connected.cluster, wanted, after=Position(begin.seq), until=end).events()
    async with contextlib.aclosing(found) as events:
        async for one in events:
            recent.add(one.time, [one.event])
    return recent


class _Screen:
    """The picture in a terminal, and the keys."""

    def __init__(self, connected: Client, look: Look, cluster: str) -> None:
        self._client = connected
        self._look = look
        self._cluster = cluster
        self._state: State
        self._recent: Recent
        self._changed = asyncio.Event()
        self._done = asyncio.Event()

    async def run(self) -> None:
        self._recent = await _recent(self._client)
        self._state = await self._client.state()
        loop = asyncio.get_running_loop()
        with Live(console=console, screen=True, auto_refresh=False) as live, keys(self._press):
            for number in (signal.SIGWINCH, signal.SIGCONT):
                loop.add_signal_handler(number, self._changed.set)
            try:
                async with asyncio.TaskGroup() as tasks:
                    working = [
                        tasks.create_task(work) for work in (self._follow(), self._follow_progress(), self._draw(live))
                    ]
                    await self._done.wait()
                    for task in working:
                        task.cancel()
            finally:
                for number in (signal.SIGWINCH, signal.SIGCONT):
                    loop.remove_signal_handler(number)

    async def _follow(self) -> None:
        async for state, events in self._client.watch():
            self._state = state
            self._recent.add(state.time, events)
            self._changed.set()

    async def _follow_progress(self) -> None:
        from dorm.client.reports import followed

        async for newest in followed(self._client.log):
            self._look.newest = newest

    async def _draw(self, live: Live) -> None:
        from dorm.cli.cluster.top_view import picture

        while True:
            self._changed.clear()
            width, height = console.size
            now = max(self._state.time, time.time_ns())
            lines = picture(
                self._state, self._recent, self._look, cluster=self._cluster, now=now, width=width, height=height
            )
            live.update(Group(*lines), refresh=True)
            await asyncio.sleep(_FRAME_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._changed.wait()

    def _press(self, key: str) -> None:
        from dorm.cli.cluster.top_keys import press

        if not press(self._look, key, self._state, time.time_ns()):
            self._done.set()
        self._changed.set()


@contextlib.contextmanager
def keys(press: Callable[[str], None]) -> Iterator[None]:
    """Pass on each key, without Enter and without its echo; Ctrl-C and Ctrl-Z do what they always do."""
    from dorm.cli.cluster.top_keys import keys_in

    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def read() -> None:
        try:
            typed = os.read(terminal, 1024)
        except OSError:
            typed = b""
        if not typed:  # The terminal is gone.
            loop.remove_reader(terminal)
            press("q")
        for key in keys_in(typed):
            press(key)

    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
