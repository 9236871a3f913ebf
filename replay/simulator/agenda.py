"""Virtual time: acts in one order."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Act = Callable[[], None]

FIRST, LAST = 0, 1
"""Order of acts: at one moment, every `FIRST` act runs before any `LAST` act, so a `LAST` act sees everything of that
moment."""


class Agenda:
    """Acts by time (UTC ns); acts of one time and rank run in the order in which they were added."""

    def __init__(self, now: int) -> None:
        self.now = now
        self._heap: list[tuple[int, int, int, Act]] = []
        self._count = 0

    def at(self, time: int, act: Act, rank: int = FIRST) -> None:
        """Plan an act; an overdue one runs now."""
        self._count += 1
        heapq.heappush(self._heap, (max(time, self.now), rank, self._count, act))

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_at(self) -> int | None:
        """When the next act is due, None if there is none."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> None:
        """Run the next act.  Raises IndexError if there is none."""
        self.now, _, _, act = heapq.heappop(self._heap)
        act()
