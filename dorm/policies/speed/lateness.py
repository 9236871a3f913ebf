"""Finish-time fairness as a bound: no app should take much longer than with its fair share alone.

    ρ = T_shared / T_isolated        (Mahajan et al., "Themis", NSDI 2020, §3)

T_shared is the app's age plus its remaining time at the speed that it would have; T_isolated is what it would have taken with
its fair share all the time: the service that it has received, divided by that share, and what is left at the share's speed.
An app whose ρ would exceed the bound is owed, in addition to its floor, enough containers to bring it back; if none do, it is
owed up to twice its fair share, so that late apps do not take everything from all others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.policies.integer import Flags, Floats, Instance, Ints
    from dorm.policies.speed.worth import Worth

MOST_SHARES = 2.0
"""Largest number of fair shares that a late app is owed."""
NO_BOUND = 1e6
SMALLEST = 1e-6


def floors(instance: Instance, worth: Worth, shares: Floats, bound: float, entitled: Flags) -> Ints:
    """Return how many units each app needs for its ρ to stay within the bound; 0 if any number does.

    `shares` are fair dominant shares; apps that are not `entitled` to one are owed nothing."""
    floors_ = np.zeros(len(instance.apps), np.int64)
    if bound >= NO_BOUND:
        return floors_
    for i, app in enumerate(instance.apps):
        unit = float(instance.unit[i])
        if not (entitled[i] and app.age_s > 0 and 0 < unit < math.inf and shares[i] > 0):
            continue
        fair = float(shares[i]) / unit
        curve, work = worth.curves[i], worth.work[i]
        speed = (
            curve.one(1) * fair if fair < 1 else _between(curve.one(math.floor(fair)), curve.one(math.ceil(fair)), fair)
        )
        served = app.served_s / max(app.gang, 1)
        isolated = served / max(fair, SMALLEST) + work / max(speed, SMALLEST)
        left = bound * isolated - app.age_s
        most = min(int(instance.fits_empty[i]), max(1, math.ceil(MOST_SHARES * fair)))
        floors_[i] = _least(curve.one, work / left, most) if left > 0 else most
    return np.minimum(floors_, instance.fits_empty)


def _between(low: float, high: float, units: float) -> float:
    return low + (high - low) * (units - math.floor(units))


def _least(speed: Callable[[int], float], wanted: float, most: int) -> int:
    """Return the least number of units, up to `most`, that is as fast as wanted: `most` if none is, or one of them by
    bisection if more may be slower."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if speed(middle) >= wanted else (middle, high)
    return high
