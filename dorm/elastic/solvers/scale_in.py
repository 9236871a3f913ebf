"""When fewer workers suffice: the measured fall of the duality gap.

CoCoA needs fewer rounds with fewer workers, since each sees more of the data, and its rounds take longer.  Early on
the gap falls fastest with many workers, late with few (Kaufmann et al., *Elastic CoCoA: Scaling In to Improve
Convergence*, arXiv 1811.02322).  So the fall of log(gap) per second is measured: if that of the last rounds is
`SLOWER` times less than that since this number of workers began, the job asks for half of them.  The rate with more workers is
remembered; if fewer turn out to be slower, the request is withdrawn permanently.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["ScaleIn", "Wish"]

ROUNDS = 8
"""The number of last rounds: enough to even out single long rounds."""
SLOWER = 1.25
"""Factor by which the gap must fall more slowly, from the paper."""
_LEAST_GAP = 1e-300


class Wish(NamedTuple):
    """A request; `size` is None to withdraw it."""

    size: int | None
    reason: str


class ScaleIn:
    """Follows the rounds of one job.  Without I/O: the caller gives times."""

    def __init__(self) -> None:
        self._members = 0
        self._points: list[tuple[float, float]] = []
        """Time and log(gap) of each round with this number of members."""
        self._requested = 0
        """The size that was asked for, 0 for none."""
        self._before: tuple[int, float] | None = None
        """Number of members before that was done, and the speed at which the gap fell."""
        self._settled = False
        """Fewer members were slower: nothing more is asked."""

    def round(self, members: int, gap: float, at: float) -> Wish | None:
        """Follow a round that began at `at` (seconds) with this gap; return a new wish, if any."""
        if members != self._members:
            self._members, self._points = members, []
        self._points.append((at, math.log(max(gap, _LEAST_GAP))))
        if self._settled or len(self._points) <= ROUNDS:
            return None
        lately = self._decay(self._points[-1 - ROUNDS])
        if self._before is not None and members < self._before[0]:
            before, fell = self._before
            self._before = None
            if lately < fell:
                self._settled, self._requested = True, 0
                return Wish(None, f"the gap falls more slowly with {members} workers than it did with {before}")
        if self._requested and members > self._requested:
            self._before = members, lately  # It was requested, and is not done yet.
            return None
        overall = self._decay(self._points[0])
        if members < 2 or len(self._points) <= 2 * ROUNDS or lately * SLOWER >= overall:
            return None
        self._requested, self._before = members // 2, (members, lately)
        return Wish(
            self._requested, f"with {members} workers the gap falls {_times(overall, lately)} more slowly than before"
        )

    def _decay(self, since: tuple[float, float]) -> float:
        """Return by how much log(gap) has fallen per second since that round."""
        at, value = self._points[-1]
        return (since[1] - value) / max(at - since[0], 1e-9)


def _times(fast: float, slow: float) -> str:
    return f"{fast / slow:.1f} times" if slow > 0 else "much"
