"""How fast an app is with n containers, and how much work it has left, for `srtf`, `gavel` and `themis`.

Measurements and declarations may be nonsense: points whose count or rate is not positive, or absurdly large, are left out.
The rate is linear between two points, proportional below the first, and flat beyond the last.  Without any point, n
containers are taken to be n times as fast as one, and work is counted in container-seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Ints
    from dorm.policies.problem import AppDemand

LONGEST_S = 1e12
"""Times are clipped here, so that sums and ratios of them stay finite."""
MOST_RATE = 1e300
"""Rates beyond this or below its inverse are nonsense, and parts of them would be zero."""


class Speed(NamedTuple):
    """Points of a curve that starts at (0, 0); empty if nothing is known."""

    counts: Floats
    rates: Floats

    @property
    def known(self) -> bool:
        return len(self.counts) > 0

    def at(self, containers: Ints) -> Floats:
        """Return steps per second, or containers if nothing is known."""
        if not self.known:
            return np.asarray(containers, np.float64)
        return np.asarray(np.interp(containers, self.counts, self.rates), np.float64)

    def one(self, containers: int) -> float:
        return float(np.interp(containers, self.counts, self.rates)) if self.known else float(containers)


UNKNOWN = Speed(np.zeros(0), np.zeros(0))


def speed(app: AppDemand, kind: str | None = None) -> Speed:
    """Return the app's speed, on nodes of one type if given."""
    points = app.speed if kind is None else app.speed_on.get(kind, app.speed)
    sound = sorted({n: rate for n, rate in points if 0 < n < 2**53 and 1 / MOST_RATE < rate < MOST_RATE}.items())
    if not sound:
        return UNKNOWN
    counts, rates = zip((0, 0.0), *sound, strict=True)
    return Speed(np.array(counts, np.float64), np.array(rates, np.float64))


def remaining_s(app: AppDemand, containers: int) -> float | None:
    """Return its remaining time with this many containers; None if its owner declares no steps or speed."""
    curve = speed(app)
    if app.remaining_steps is None or not curve.known:
        return None
    return seconds(app.remaining_steps / curve.one(max(containers, 1)))


def seconds(value: float) -> float:
    """Return a time between 0 and `LONGEST_S`; NaN counts as 0."""
    return min(max(value, 0.0), LONGEST_S) if value == value else 0.0
