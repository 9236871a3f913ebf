"""Which color an app has in pictures: the same in every browser, at every moment of its life, and after a reload.

A picture has nine colors that can be told apart, and the same nine again with stripes, and with dots.  An app takes a free one
when it arrives: of the nine, while one of them is free, else of those with a pattern.  Only apps that live then count, so apps
that have ended keep their colors without taking them from live ones.  Where the choice begins follows from the app's id, so
that colors are spread, and few depend on each other.

All of that follows from the apps that the state keeps, with their times.  An app that outlives the retention of one that had
its color may change it once; nothing else changes a color.
"""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import App

COLORS, PATTERNS = 9, 3
_STRIDE = 4
"""Colors next to each other are similar; this one leads through all nine."""


def colors_of(apps: Iterable[App]) -> dict[str, int]:
    """Return the color of each app, as `color + COLORS * pattern`."""
    found: dict[str, int] = {}
    living: list[tuple[int, int]] = []
    """Ends and colors of those that live, the first to end first."""
    taken: Counter[int] = Counter()
    for app in sorted(apps, key=lambda app: (app.seq, app.id)):
        while living and living[0][0] < app.submitted_at:
            taken[heapq.heappop(living)[1]] -= 1
        found[app.id] = color = _free(app.id, taken)
        taken[color] += 1
        if app.ended:
            heapq.heappush(living, (app.ended_at, color))
    return found


def _free(id: str, taken: Counter[int]) -> int:
    """Return the first color that the fewest have, plain ones first."""
    first = zlib.crc32(id.encode()) % COLORS
    best, fewest = first, taken[first]
    for number in range(COLORS * PATTERNS):
        if not fewest:
            break
        pattern, step = divmod(number, COLORS)
        color = (first + step * _STRIDE) % COLORS + COLORS * pattern
        if taken[color] < fewest:
            best, fewest = color, taken[color]
    return best
