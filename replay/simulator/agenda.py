"""Virtual time: what is to happen when, in one order."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Act = Callable[[], None]

FIRST, LAST = 0, 1
"""At one moment, all that is `FIRST` happens before anything that is `LAST`: who reacts sees all of that moment."""


class Agenda:
    """Acts by time (UTC ns); of one time and rank in the order in which they were put down."""

    def __init__(self, now: int) -> None:
        self.now = now
        self._heap: list[tuple[int, int, int, Act]] = []
        self._count = 0

    def at(self, time: int, act: Act, rank: int = FIRST) -> None:
        """What is due already happens now."""
        self._count += 1
        heapq.heappush(self._heap, (max(time, self.now), rank, self._count, act))

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_at(self) -> int | None:
        """When the next act is due, None where none is."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> None:
        """Do the next act.  Raises IndexError where there is none."""
        self.now, _, _, act = heapq.heappop(self._heap)
        act()
