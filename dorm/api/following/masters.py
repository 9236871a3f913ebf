"""Who leads, by the lease, and who follows: read and asked from time to time, so that no request waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dorm.client.masters import row_of
from events.log.records import LogError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dorm.client.masters import Leader, MasterRow
    from dorm.core.state import State
    from events.log.leadership import Held, Leadership

_LOOK_S = 1.0
_ASK_S = 5.0
_SPARE_S = 3.0
"""Seconds beyond the lease after which one that was not renewed is silent."""


class MastersWatch:
    """Follows the lease of a cluster's masters."""

    def __init__(
        self,
        leadership: Leadership,
        clock: Callable[[], int],
        ask: Callable[[], Awaitable[list[MasterRow] | None]] | None = None,
    ) -> None:
        """`ask` asks all masters for their status; None if there is nothing to ask, as for an archive."""
        self._ask = ask
        self._every: list[MasterRow] | None = None
        self._leadership = leadership
        self._clock = clock
        self._held: Held | None = None
        self._written_at = 0
        self._renewed_at = float("-inf")
        """By the loop's clock."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_lease(), name="lease")
            if self._ask is not None:
                tasks.create_task(self._ask_all(self._ask), name="masters")

    async def _ask_all(self, ask: Callable[[], Awaitable[list[MasterRow] | None]]) -> None:
        while True:
            self._every = await ask()
            await asyncio.sleep(_ASK_S)

    async def _watch_lease(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                held = await self._leadership.look()
                if held != self._held:
                    self._held, self._renewed_at = held, loop.time()
                    self._written_at = self._clock()
            except LogError:
                pass  # The follower reports outages.
            await asyncio.sleep(_LOOK_S)

    def row(self) -> Callable[[State], Leader]:
        """Return a row that says who leads, as `dorm masters` shows it, from a state."""
        held, written_at, now = self._held, self._written_at, self._clock()
        patience = held.ttl_s + _SPARE_S if held is not None else 0.0
        seen = asyncio.get_running_loop().time() - self._renewed_at <= patience
        return lambda state: replace(row_of(state, held, written_at, now, seen=seen), masters=self._every)
