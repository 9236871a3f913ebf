"""How fast an app is with n containers, and how much work it has left.

Speeds are relative to one unit (a container, or a gang of them), and work is counted in seconds of one unit, so apps whose
steps differ can be compared.  What is known of an app may be nonsense; nothing here lets it starve for that.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies.speed.learning import known_of, learned

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Ints
    from dorm.policies.problem import AppDemand
    from dorm.policies.speed.learning import Known

GROWTH = 2
"""How many times the largest measured count an app may have while its speed is being learned."""
MOST_GAIN = 1.5
"""A speed-up of more than this many times the number of units is an error of measurement, and clipped."""
LEAST_GAIN = 0.01
"""And one below this part of a unit likewise."""
LEAST_WORK_S, MOST_WORK_S = 60.0, 1e9
"""Work that is assumed to be left, at least and at most: an app that is about to end is not worth restarting others."""


class Curve(NamedTuple):
    """Rates at ascending counts of containers, starting with (0, 0), relative to one unit."""

    counts: Floats
    rates: Floats
    gang: int
    points: tuple[tuple[float, ...], tuple[float, ...]]
    """The same as plain numbers: for a single count they are much faster."""

    def speed_up(self, units: Ints) -> Floats:
        """Return the speed with so many units, each at least 1, relative to one unit."""
        found = np.interp(units * float(self.gang), self.counts, self.rates)
        return np.asarray(np.clip(found, LEAST_GAIN, MOST_GAIN * units))

    def one(self, units: int) -> float:
        """Return the speed with so many units, at least 1, relative to one unit."""
        (counts, rates), n = self.points, units * self.gang
        at = bisect_right(counts, n)
        if at == len(counts):
            found = rates[-1]
        else:
            low, high = at - 1, at
            found = rates[low] + (rates[high] - rates[low]) * (n - counts[low]) / (counts[high] - counts[low])
        return min(max(found, LEAST_GAIN), MOST_GAIN * units)


def curve(app: AppDemand) -> Curve:
    """Return what is known of its speed (`learning`), linear between counts, in proportion below the first and flat beyond the
    last."""
    return _curve(known_of(app))


@lru_cache(maxsize=16_384)
def _curve(known: Known) -> Curve:
    found = learned(known)
    one = max(found.rate(known.gang), float(found.rates.max()) * 1e-9)
    rates = found.rates / one
    return Curve(found.counts, rates, known.gang, (tuple(found.counts.tolist()), tuple(rates.tolist())))


def useful(app: AppDemand) -> int:
    """Return the least count, within its bounds, that is as fast as any: it is owed nothing beyond that.

    What it has now is useful, and everything where too little is known.  The speed is linear between known points, so only
    these matter."""
    if len(app.speed) + len(app.measured) < 2 or app.n_max <= app.n_min:
        return app.n_max
    return min(max(_fastest(known_of(app)), app.n_min, sum(app.current.values())), app.n_max)


@lru_cache(maxsize=16_384)
def _fastest(known: Known) -> int:
    """Return the least count that is as fast as any."""
    gang, found = known.gang, _curve(known)
    counts = [int(n) for n in found.points[0]]
    units = {n // gang for n in counts} | {-(-n // gang) for n in counts}
    least = max(-(-known.least // gang), 1)
    most = max(known.most // gang, least)
    tried = np.array(sorted({least, *(n for n in units if least <= n <= most), most}), np.int64)
    speed = found.speed_up(tried)
    return int(tried[int(np.argmax(speed >= speed.max() * (1 - 1e-9)))]) * gang


def explored(app: AppDemand) -> int:
    """Return up to how many containers it may have while its speed is being learned: twice the largest count that was
    measured, so that a wrong guess costs little; n_max where its owner declares its speed, or nothing was measured."""
    known = largest(app)
    if app.speed or not known:
        return app.n_max
    gang = max(app.gang, 1)
    return min(max(GROWTH * known // gang * gang, app.n_min, sum(app.current.values())), app.n_max)


def largest(app: AppDemand) -> int:
    """Return the largest count that was measured, of it or of the app like it; 0 for none."""
    return learned(known_of(app)).largest


def work_s(app: AppDemand) -> float:
    """Return the work that is left, in seconds of one unit.

    It follows from the remaining steps and the speed, where both are known; else it is as much as the app has received so
    far, which is what attained service says of heavy-tailed work (Tiresias, NSDI 2019, §3.2)."""
    gang = max(app.gang, 1)
    known = learned(known_of(app))
    if app.remaining_steps is not None and known.absolute:
        rate = known.rate(gang)
        left = app.remaining_steps / rate if rate > 0 else MOST_WORK_S
    else:
        left = app.served_s / gang
    return min(max(left, LEAST_WORK_S), MOST_WORK_S) if left == left else LEAST_WORK_S
