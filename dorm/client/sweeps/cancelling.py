"""The end of a sweep: all of its apps are cancelled, so that none starts in the place of one that ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from dorm.client.errors import Refused
from dorm.client.sweeps.finding import find_sweep
from events.kinds import AppCancelRequested

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.client.client import Client
    from dorm.core.state import State

_AT_ONCE = 32
"""Requests that are under way at once."""


class Cancelled(NamedTuple):
    """The requested cancellations."""

    apps: tuple[str, ...]
    """The ids of the apps that had not ended."""
    position: int
    """The last sequence of a request."""


async def cancel(client: Client, name: str, reason: str = "") -> Cancelled:
    """Cancel all apps of a sweep that have not ended, those that wait first.  Raises NotFound; Refused, also if all of it has
    ended; Unsettled, and the log's errors."""

    def live(state: State) -> list[tuple[str, bool]]:
        return [(app.id, bool(app.generation)) for app in find_sweep(state, name, client.user) if not app.ended]

    found = await client.look(live)
    if not found:
        raise Refused(f"all apps of the sweep {name} have ended already", code="app.ended")
    position = 0
    for started in (False, True):
        # The last ones first: a command that still submits the sweep continues after them.
        ids = [app for app, has_started in reversed(found) if has_started is started]
        position = max(position, await _cancel_all(client, ids, reason))
    return Cancelled(tuple(app for app, _ in found), position)


async def _cancel_all(client: Client, apps: Sequence[str], reason: str) -> int:
    """Publish the requests; return the last sequence of one, 0 for none."""
    free = asyncio.Semaphore(_AT_ONCE)

    async def ask(app: str) -> int:
        async with free:
            return await client.ask(AppCancelRequested, app=app, reason=reason)

    try:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(ask(app)) for app in apps]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return max((task.result() for task in asked), default=0)
