"""How fast an app is with n containers, and how much work it has left.

Speeds are relative to one unit (a container, or a gang of them), and work is counted in seconds of one unit, so apps whose
steps differ can be compared.  What an owner declares may be nonsense; nothing here lets an app starve for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Ints
    from dorm.policies.problem import AppDemand

PRIOR = 0.9
"""Where nothing is known, n units are n^PRIOR times as fast as one: communication takes some of each further container."""
BEYOND = 2.0
"""A curve with a single point is continued by the prior up to this many times its count, and flat from there."""
MOST_GAIN = 1.5
"""A speed-up of more than this many times the number of units is an error of measurement, and clipped."""
LEAST_GAIN = 0.01
"""And one below this part of a unit likewise."""
LEAST_WORK_S, MOST_WORK_S = 60.0, 1e9
"""Work that is assumed to be left, at least and at most: an app that is about to end is not worth restarting others."""


class Curve(NamedTuple):
    """Rates at ascending counts of containers, starting with (0, 0), relative to one unit; empty where nothing is known."""

    counts: Floats
    rates: Floats
    gang: int

    def speed_up(self, units: Ints) -> Floats:
        """Return the speed with so many units, each at least 1, relative to one unit."""
        if not len(self.counts):
            return np.asarray(units.astype(np.float64) ** PRIOR)
        containers = units * float(self.gang)
        found = np.interp(containers, self.counts, self.rates)
        if len(self.counts) == 2:
            more = np.clip(containers / self.counts[1], 1.0, BEYOND) ** PRIOR
            found = found * more
        return np.asarray(np.clip(found, LEAST_GAIN, MOST_GAIN * units))


UNKNOWN = Curve(np.zeros(0), np.zeros(0), 1)


def curve(app: AppDemand) -> Curve:
    """Return the curve that its owner declares: linear between the points, in proportion below the first, flat beyond the
    last.  Points with counts or rates that are not positive and finite are left out."""
    known = sorted({n: rate for n, rate in app.speed if 0 < n < 2**53 and 0 < rate < math.inf}.items())
    if not known:
        return UNKNOWN
    gang = max(app.gang, 1)
    counts = np.array([0.0, *(float(n) for n, _ in known)])
    rates = np.array([0.0, *(rate for _, rate in known)])
    one = max(float(np.interp(gang, counts, rates)), 1e-300)
    return Curve(counts, np.minimum(rates / one, 1e9), gang)


def useful(app: AppDemand) -> int:
    """Return the least count, within its bounds, that is as fast as any: it is owed nothing beyond that.

    What it has now is useful, and everything where too little is known.  The speed is linear between declared points, so only
    these matter."""
    known = curve(app)
    now = sum(app.current.values())
    if len(known.counts) < 3 or app.n_max <= app.n_min:
        return app.n_max
    gang = max(app.gang, 1)
    units = {int(n) // gang for n in known.counts.tolist()} | {-(-int(n) // gang) for n in known.counts.tolist()}
    least, most = max(-(-app.n_min // gang), 1), app.n_max // gang
    tried = np.array(sorted({least, *(n for n in units if least <= n <= most), max(most, least)}), np.int64)
    speed = known.speed_up(tried)
    fastest = int(tried[int(np.argmax(speed >= speed.max() * (1 - 1e-9)))])
    return min(max(fastest * gang, app.n_min, now), app.n_max)


def work_s(app: AppDemand) -> float:
    """Return the work that is left, in seconds of one unit.

    It follows from the remaining steps and the speed, where both are declared; else it is as much as the app has received so
    far, which is what attained service says of heavy-tailed work (Tiresias, NSDI 2019, §3.2)."""
    gang = max(app.gang, 1)
    known = sorted({n: rate for n, rate in app.speed if 0 < n < 2**53 and 0 < rate < math.inf}.items())
    if app.remaining_steps is not None and known:
        rate = float(np.interp(gang, [0.0, *(float(n) for n, _ in known)], [0.0, *(rate for _, rate in known)]))
        left = app.remaining_steps / rate if rate > 0 else MOST_WORK_S
    else:
        left = app.served_s / gang
    return min(max(left, LEAST_WORK_S), MOST_WORK_S) if left == left else LEAST_WORK_S
