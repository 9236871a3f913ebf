"""`dorm wait`: let a script continue once apps run, or have ended."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_app
from dorm.cli.errors import TIMED_OUT, Fail, complain
from dorm.cli.output import console
from dorm.cli.sizes import seconds_of

if TYPE_CHECKING:
    from dorm.cli.swept.waiting import Sweeps
    from dorm.client.client import Client
    from dorm.core.state import App

_NAMED = 5
"""Apps that are named where the time was over."""


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

    from dorm.cli.apps.waiting import reporting_missing_master
    from dorm.cli.swept.waiting import Sweeps

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
    from dorm.cli.project.shipping import missing_in

    async for state, _ in connected.watch():
        for id in list(pending):
            app = state.apps.get(id)
            if app is None:
                complain(
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
            if sweeps.told(app, well=there):
                continue
            if there:
                console.print(Text(f"{app.name} {app.ended or 'runs'}"))
            else:
                reason = f": {app.end_reason}" if app.end_reason else ""
                if missing := await missing_in(app, None):
                    reason = f"{reason}; {missing}"
                complain(f"{app.name} {app.ended}{reason}", f"app.{app.ended}")
        if not pending:
            return


def _is(app: App, condition: Condition) -> bool:
    if condition is Condition.running:
        return app.phase == "running"
    return app.ended == "completed" if condition is Condition.completed else bool(app.ended)
