"""Waiting for apps: `dorm wait`, which lets a script continue once they run or have ended, and what other commands wait for.

A name may stand for a sweep, which takes one line instead of one for each app.  A command that waits says so if no master
leads: nothing else would explain the silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_app
from dorm.cli.errors import TIMED_OUT, Fail, report_error
from dorm.cli.options import seconds_of
from dorm.cli.output import console, progress_console
from events.log.records import LogError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from dorm.client.client import Client
    from dorm.core.state import App
    from events.log.leadership import Held, Leadership


# --- while no master leads --------------------------------------------------------------------------------------------

NOBODY = "no master leads, so nothing is decided until one does (`dorm masters`)"
_TAKEOVER_S = 3.0
"""Grace after a lease was not renewed: within it another master takes over, and nothing needs to be reported."""
_LEAST_LOOK_S = 0.5


class Leaderless:
    """Whether no master leads, judging by the lease."""

    now = False


@contextlib.asynccontextmanager
async def reporting_missing_master(connected: Client, leaderless: Leaderless | None = None) -> AsyncIterator[None]:
    """While the block runs, report on stderr, and in `leaderless`, when no master leads, and when one does again."""
    leaderless = leaderless or Leaderless()
    watching = None if connected.leadership is None else asyncio.create_task(_watch(connected.leadership, leaderless))
    try:
        yield
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])


async def _watch(leadership: Leadership, leaderless: Leaderless) -> None:
    loop = asyncio.get_running_loop()
    seen: Held | None = None
    since = loop.time()
    while True:
        try:
            held = await leadership.look()
        except LogError:  # The connection reports outages.
            held = None
        if held is None or held != seen:  # Without a lease it is unknown.
            seen, since = held, loop.time()
        silent = seen is not None and loop.time() - since > seen.ttl_s + _TAKEOVER_S
        if silent != leaderless.now and (silent or (seen is not None and seen.holder)):
            leaderless.now = silent
            progress_console.print(Text(NOBODY if silent else "a master leads again"))
        await asyncio.sleep(max(_LEAST_LOOK_S, seen.ttl_s / 4 if seen else 0.0))


# --- sweeps -----------------------------------------------------------------------------------------------------------

_NAMED = 5
"""Apps of a sweep that did not complete and are named one by one."""


class Sweeps:
    """The sweeps among the names that a command was given."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        """The sweep of each app."""
        self._left: dict[str, int] = {}
        self._ends: dict[str, dict[str, int]] = {}

    async def apps(self, connected: Client, name: str) -> list[App]:
        """Return the apps that a name stands for: those of a sweep, else the app of this name.  Raises NotFound."""
        from dorm.client.sweeps import find_sweep, is_sweep

        state = await connected.state()
        if not is_sweep(state, name, connected.user):
            return [await connected.app(name)]
        apps = find_sweep(state, name, connected.user)
        group = apps[0].spec.group
        if group is not None and len(apps) < group.count:
            text = f"{name}: {len(apps)} of {group.count} apps are submitted; the others are not waited for"
            progress_console.print(Text(text))
        self._of.update((app.id, name) for app in apps)
        self._left[name], self._ends[name] = len(apps), {}
        return apps

    def note(self, app: App, *, well: bool) -> bool:
        """Note that an app got there, or can't any more; return False for an app of no sweep, which the caller reports
        itself."""
        name = self._of.get(app.id)
        if name is None:
            return False
        ends = self._ends[name]
        how = app.ended or "runs"
        ends[how] = ends.get(how, 0) + 1
        if not well:
            bad = sum(count for end, count in ends.items() if end not in ("completed", "runs"))
            reason = f": {app.end_reason}" if app.end_reason else ""
            if bad <= _NAMED:
                report_error(f"{app.name} {app.ended}{reason}", f"app.{app.ended}")
        self._left[name] -= 1
        if not self._left[name]:
            console.print(Text(f"{name}: {', '.join(f'{count} {end}' for end, count in sorted(ends.items()))}"))
        return True


async def until_all_ended(connected: Client, name: str) -> None:
    """Wait until all apps of a sweep have ended, and say how; those that did not complete are complaints."""
    sweeps = Sweeps()
    pending = {app.id for app in await sweeps.apps(connected, name)}
    async for state, _ in connected.watch():
        for id in [id for id in pending if id in state.apps and state.apps[id].ended]:
            app = state.apps[id]
            sweeps.note(app, well=app.ended == "completed")
            pending.discard(id)
        if not pending:
            return


async def all_ended(connected: Client, apps: Collection[str]) -> None:
    """Wait until these apps have ended, or are kept no longer."""
    async for state, _ in connected.watch():
        if all(id not in state.apps or state.apps[id].ended for id in apps):
            return


# --- wait -------------------------------------------------------------------------------------------------------------


class Condition(StrEnum):
    """What to wait for."""

    running = "running"
    completed = "completed"
    ended = "ended"


@command()
async def wait(
    cx: Cluster,
    apps: Annotated[
        list[str],
        typer.Argument(metavar="APP...", help="Names or ids of apps, or names of sweeps.", autocompletion=complete_app),
    ],
    condition: Annotated[Condition, typer.Option("--for", help="What to wait for.")] = Condition.completed,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Give up after this time, such as 90s or 2h; default: never.")
    ] = None,
) -> None:
    """Wait until each app runs, has completed, or has ended in any way.

    An app runs when all its containers do. An app that can no longer reach the
    state, because it has ended otherwise, is reported immediately; the command
    still waits for the others. The name of a sweep stands for all its apps.

    The exit status is 0 if all apps reached the state, 1 if one did not, and 124
    if the time ran out first, as with timeout(1).

    [bold]Examples[/]

      dorm wait digits-mlp && dorm logs digits-mlp

      dorm wait first second --for ended

      dorm wait digits-mlp --for running --timeout 5m

      dorm wait lr --for ended && dorm sweep show lr --by loss
    """
    seconds = seconds_of("--timeout", timeout)

    async with cx.client() as connected:
        sweeps = Sweeps()
        pending = {app.id: app for name in apps for app in await sweeps.apps(connected, name)}
        limit = asyncio.timeout(seconds)
        try:
            async with limit, reporting_missing_master(connected):
                await _until_settled(connected, pending, condition, sweeps)
        except TimeoutError:
            if not limit.expired():
                raise
            left = ", ".join(f"{app.name} ({app.phase})" for app in list(pending.values())[:_NAMED])
            left += f" and {len(pending) - _NAMED} more" if len(pending) > _NAMED else ""
            raise Fail(
                f"not {condition} after {timeout}: {left}; `dorm explain APP` says why",
                TIMED_OUT,
                code="wait.timed_out",
            ) from None


async def _until_settled(connected: Client, pending: dict[str, App], condition: Condition, sweeps: Sweeps) -> None:
    """Wait until each app got there or can't any more; remove it from `pending` then, which has the apps as last seen."""
    from dorm.cli.project import missing_in

    async for state, _ in connected.watch():
        for id in list(pending):
            app = state.apps.get(id)
            if app is None:
                report_error(
                    f"{pending.pop(id).name} has ended and the cluster keeps it no longer; `dorm events --app {id}` shows "
                    "how it ended",
                    "app.not_found",
                )
                continue
            pending[id] = app
            there = _is(app, condition)
            if not there and not app.ended:
                continue
            del pending[id]
            if sweeps.note(app, well=there):
                continue
            if there:
                console.print(Text(f"{app.name} {app.ended or 'runs'}"))
            else:
                reason = f": {app.end_reason}" if app.end_reason else ""
                if missing := await missing_in(app, None):
                    reason = f"{reason}; {missing}"
                report_error(f"{app.name} {app.ended}{reason}", f"app.{app.ended}")
        if not pending:
            return


def _is(app: App, condition: Condition) -> bool:
    if condition is Condition.running:
        return app.phase == "running"
    return app.ended == "completed" if condition is Condition.completed else bool(app.ended)
