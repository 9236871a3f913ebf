"""What a command that waits says while nobody decides anything."""

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
"""Beyond a lease that is not renewed: in that time another master takes it over, so that there is nothing to tell."""
_LEAST_LOOK_S = 0.5


class Leaderless:
    """Whether nobody leads, as far as the lease tells."""

    now = False


@contextlib.asynccontextmanager
async def telling_who_is_missing(connected: Client, found: Leaderless | None = None) -> AsyncIterator[None]:
    """Until the end of the block it is said on stderr, and in `found`, when no master leads, and when one does again."""
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
        except LogError:  # An outage is told by the connection.
            held = None
        if held is None or held != seen:  # Without a lease nobody knows.
            seen, since = held, loop.time()
        silent = seen is not None and loop.time() - since > seen.ttl_s + _TAKEOVER_S
        if silent != found.now and (silent or (seen is not None and seen.holder)):
            found.now = silent
            progress_console.print(Text(NOBODY if silent else "a master leads again"))
        await asyncio.sleep(max(_LEAST_LOOK_S, seen.ttl_s / 4 if seen else 0.0))
