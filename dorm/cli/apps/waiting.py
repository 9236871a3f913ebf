"""Messages of a command that waits while no master leads."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from rich.text import Text

from dorm.cli.output import progress_console
from events.log.records import LogError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.client.client import Client
    from events.log.leadership import Held, Leadership

NOBODY = "no master leads, so nothing is decided until one does (`dorm masters`)"
_TAKEOVER_S = 3.0
"""Grace after a lease was not renewed: within it another master takes over, and nothing needs to be reported."""
_LEAST_LOOK_S = 0.5


class Leaderless:
    """Whether no master leads, judging by the lease."""

    now = False


@contextlib.asynccontextmanager
async def reporting_missing_master(connected: Client, found: Leaderless | None = None) -> AsyncIterator[None]:
    """While the block runs, report on stderr, and in `found`, when no master leads, and when one does again."""
    found = found or Leaderless()
    watching = None if connected.leadership is None else asyncio.create_task(_watch(connected.leadership, found))
    try:
        yield
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])


async def _watch(leadership: Leadership, found: Leaderless) -> None:
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
        if silent != found.now and (silent or (seen is not None and seen.holder)):
            found.now = silent
            progress_console.print(Text(NOBODY if silent else "a master leads again"))
        await asyncio.sleep(max(_LEAST_LOOK_S, seen.ttl_s / 4 if seen else 0.0))
