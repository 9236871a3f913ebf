"""How fast an app is with n containers, and its remaining work.

Speeds are relative to one unit (a container, or a gang of them), and work is counted in seconds of one unit, so apps whose
steps differ can be compared.  Data about an app may be nonsense, which never makes it starve.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies.speed import learning
from dorm.policies.speed.by_type import MOST_RATIO, by_type, typed_of
from dorm.policies.speed.learning import known_of, learned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dorm.policies.integer import Floats, Ints
    from dorm.policies.problem import AppDemand
    from dorm.policies.speed.by_type import Typed
    from dorm.policies.speed.learning import Known

GROWTH = 2
"""Largest count of an app while its speed is being learned, in multiples of the largest measured one."""
MOST_GAIN = 1.5
"""A speed-up of more than this many times the number of units is an error of measurement, and clipped."""
LEAST_GAIN = 0.01
"""And one below this part of a unit likewise."""
LEAST_WORK_S, MOST_WORK_S = 60.0, 1e9
"""Bounds of the assumed remaining work: an app that is about to end does not justify restarting others."""


class Curve(NamedTuple):
    """Rates at ascending counts of containers, starting with (0, 0), relative to one unit."""

    counts: Floats
    rates: Floats
    gang: int
    points: tuple[tuple[float, ...], tuple[float, ...]]
    """The same as plain numbers: for a single count they are much faster."""
    fast: float = 1.0
    """The largest accepted multiple of the reference's gain: more than 1 on a type of nodes that is faster than the
    reference."""

    def speed_up(self, units: Ints) -> Floats:
        """Return the speed with these numbers of units, each at least 1, relative to one unit."""
        rates = np.interp(units * float(self.gang), self.counts, self.rates)
        return np.asarray(np.clip(rates, LEAST_GAIN, MOST_GAIN * self.fast * units))

    def one(self, units: int) -> float:
        """Return the speed with this many units, at least 1, relative to one unit."""
        (counts, rates), n = self.points, units * self.gang
        at = bisect_right(counts, n)
        if at == len(counts):
            rate = rates[-1]
        else:
            low, high = at - 1, at
            rate = rates[low] + (rates[high] - rates[low]) * (n - counts[low]) / (counts[high] - counts[low])
        return min(max(rate, LEAST_GAIN), MOST_GAIN * self.fast * units)


def curve(app: AppDemand) -> Curve:
    """Return its known speed (`learning`), linear between counts, in proportion below the first and flat beyond the
    last."""
    return curve_of(known_of(app))


@lru_cache(maxsize=16_384)
def curve_of(known: Known) -> Curve:
    """Return the curve that follows from this knowledge (`curve`)."""
    learned_ = learned(known)
    base = max(learned_.rate(known.gang), float(learned_.rates.max()) * 1e-9)
    rates = learned_.rates / base
    return Curve(learned_.counts, rates, known.gang, (tuple(learned_.counts.tolist()), tuple(rates.tolist())))


class Paces(NamedTuple):
    """How fast an app is on each type of nodes, relative to one unit on the slowest of them."""

    curves: dict[str, Curve]
    mixed: Curve
    """Curve on nodes of any of these types."""
    one: float
    """Rate of the app with one unit on the slowest type: steps per second if `absolute`."""
    absolute: bool

    def slowest(self, units: int, types: Iterable[str]) -> str:
        """Return the type on which so many units are slowest: the pace of a partition on all these types."""
        on = [name for name in types if name in self.curves] or self.curves
        return min(on, key=lambda name: (self.curves[name].one(units), name))

    def as_fast(self, units: int, pace: str, most: float = math.inf) -> tuple[str, ...]:
        """Return the types on which so many units are at least as fast as on this one, and at most so many times, sorted."""
        speed = self.curves[pace].one(units) * (1 - 1e-9)
        return tuple(name for name in sorted(self.curves) if speed <= self.curves[name].one(units) <= speed * most)


def paces(app: AppDemand, types: Sequence[str], usable: Sequence[str]) -> Paces | None:
    """Return its speed on the types of the cluster that it can use; None if no difference between types is known."""
    typed = typed_of(app, types)
    return _paces(typed, tuple(usable)) if typed is not None and usable else None


@lru_cache(maxsize=16_384)
def _paces(typed: Typed, usable: tuple[str, ...]) -> Paces | None:
    learned_on = by_type(typed)
    if learned_on is None:
        return None
    gang, usable_curves = typed.known.gang, [(name, learned_on.curves[name]) for name in usable]
    counts = np.unique(np.concatenate([each.counts for _, each in usable_curves]))
    rates = np.stack([np.interp(counts, each.counts, each.rates) for _, each in usable_curves])
    slowest = rates.min(axis=0)
    base = max(float(np.interp(gang, counts, slowest)), float(slowest.max()) * 1e-9)
    rates = np.minimum(rates, MOST_RATIO * slowest) / base
    plain = tuple(counts.tolist())
    curves = {}
    for (name, _), rate in zip(usable_curves, rates, strict=True):
        fast = max(float(np.interp(gang, counts, rate)), 1.0)
        curves[name] = Curve(counts, rate, gang, (plain, tuple(rate.tolist())), fast)
    mixed = Curve(counts, slowest / base, gang, (plain, tuple((slowest / base).tolist())))
    return Paces(curves, mixed, base, all(each.absolute for _, each in usable_curves))


def useful(app: AppDemand, types: Sequence[str] = ()) -> int:
    """Return the smallest count, within its bounds, that is as fast as any: it is owed nothing beyond that.

    What it has now is useful, and everything if too little is known.  The speed is linear between known points, so only
    these matter.  On a cluster with several `types` it is the largest such count of any of them."""
    curves = paces(app, types, types)
    points = len(app.speed) + len(app.measured) + sum(map(len, app.speed_on.values())) * (curves is not None)
    if points < 2 or app.n_max <= app.n_min:
        return app.n_max
    known = known_of(app)
    fastest = _fastest(known) if curves is None else max(_as_fast(known, each) for each in curves.curves.values())
    return min(max(fastest, app.n_min, sum(app.current.values())), app.n_max)


@lru_cache(maxsize=16_384)
def _fastest(known: Known) -> int:
    """Return the least count that is as fast as any."""
    return _as_fast(known, curve_of(known))


def _as_fast(known: Known, curve: Curve) -> int:
    gang = known.gang
    counts = [int(n) for n in curve.points[0]]
    units = {n // gang for n in counts} | {-(-n // gang) for n in counts}
    least = max(-(-known.least // gang), 1)
    most = max(known.most // gang, least)
    tried = np.array(sorted({least, *(n for n in units if least <= n <= most), most}), np.int64)
    speed = curve.speed_up(tried)
    return int(tried[int(np.argmax(speed >= speed.max() * (1 - 1e-9)))]) * gang


def explored(app: AppDemand) -> int:
    """Return up to how many containers it may have while its speed is being learned: twice the largest count that was
    measured, so that a wrong guess costs little; n_max if its owner declares its speed, or nothing was measured."""
    known = largest(app)
    if app.speed or app.speed_on or not known:
        return app.n_max
    gang = max(app.gang, 1)
    return min(max(GROWTH * known // gang * gang, app.n_min, sum(app.current.values())), app.n_max)


def largest(app: AppDemand) -> int:
    """Return the largest count that was measured, of it or of the app like it; 0 for none."""
    return learning.largest(known_of(app))


def work_s(app: AppDemand, paces_: Paces | None = None) -> float:
    """Return the work that is left, in seconds of one unit: on the slowest type of nodes, if types matter.

    It follows from the remaining steps and the speed, if both are known; else it is as much as the app has received so
    far, which is what attained service says of heavy-tailed work (Tiresias, NSDI 2019, §3.2)."""
    gang = max(app.gang, 1)
    known = learned(known_of(app))
    absolute = known.absolute if paces_ is None else paces_.absolute
    if app.remaining_steps is not None and absolute:
        rate = known.rate(gang) if paces_ is None else paces_.one
        left = app.remaining_steps / rate if rate > 0 else MOST_WORK_S
    else:
        left = app.served_s / gang
    return min(max(left, LEAST_WORK_S), MOST_WORK_S) if left == left else LEAST_WORK_S
