"""Waiting for sweeps: which apps a name stands for, and one line for each sweep instead of one for each app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from dorm.cli.errors import complain
from dorm.cli.output import console, progress_console
from dorm.client.sweeps import find_sweep, is_sweep

if TYPE_CHECKING:
    from collections.abc import Collection

    from dorm.client.client import Client
    from dorm.core.state import App

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

    def told(self, app: App, *, well: bool) -> bool:
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
                complain(f"{app.name} {app.ended}{reason}", f"app.{app.ended}")
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
            sweeps.told(app, well=app.ended == "completed")
            pending.discard(id)
        if not pending:
            return


async def all_ended(connected: Client, apps: Collection[str]) -> None:
    """Wait until these apps have ended, or are kept no longer."""
    async for state, _ in connected.watch():
        if all(id not in state.apps or state.apps[id].ended for id in apps):
            return
