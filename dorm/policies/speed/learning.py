"""How fast an app is with n containers, learned from how fast it has worked so far.

Measurements correct an expectation, which is, in this order, the owner's declaration, a similar app's speed, or the law of a
step (Pollux, OSDI 2021, §3.2),

    T(n) = (T_c(n)^γ + T_n(n)^γ)^(1/γ)      T_c = t / n        T_n = 0 for n = 1, else t s (1 + r (n - 2))

with the batch fixed: T_c is the time of the computation, T_n that of the communication, and γ >= 1 how far they overlap.  Its
parameters are fitted by least squares of log T on a grid, held near usual ones, so that a single point is enough and the same
points give the same bits.  Each measured point then moves the curve towards itself, by how long it was measured, and between
two points the correction is linear in log n.

Counts are containers, rates steps per second.  Points with values that make no sense are left out.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from dorm.policies.integer import Floats
    from dorm.policies.problem import AppDemand, Measured

USUAL = (1.0, 0.01, 0.0)
"""γ, s and r of an app of which nothing is known: 64 containers are 39 times as fast as one."""
BEYOND = 2.0
"""A curve with a single declared point is continued by the law up to this many times its count, and flat from there."""
_GRID = [
    (gamma, s, r)
    for gamma in (1.0, 2.0, 5.0)
    for s in (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    for r in (0.0, 0.02, 0.1)
]
_NOISE = 0.1
"""Standard deviation of log T if it was measured for a minute."""
_MINUTE = 60.0
_SPREAD = {"declared": 0.1, "alike": 0.15, "law": 0.3}
"""Error by basis of an expectation, for each doubling of the distance to the next measured count, as a standard deviation of
log T."""
_MOST = 1e12
"""Counts, rates and seconds beyond this, and rates below its inverse, are nonsense."""
_FAR = 4.0
"""A measured rate counts if it is at most this many times off the expectation through the other points."""
_MOST_SLOWER, _MOST_FASTER = 20.0, 2.0
"""Bounds of the speed with more containers: this many times slower, and this many times faster than in proportion."""


class Point(NamedTuple):
    """One measured count."""

    containers: int
    rate: float
    """Steps per second."""
    seconds: float


class Learned(NamedTuple):
    """A curve, and its basis."""

    basis: str
    """`measured`, `declared`, `alike` or `law`."""
    counts: Floats
    """Ascending counts, with 0 first."""
    rates: Floats
    """Steps per second if any were known, else relative to one container; 0 for 0."""
    absolute: bool
    """Whether the rates are steps per second."""
    largest: int
    """The largest count that was measured, on it or on the app like it; 0 for none."""
    measured: tuple[Point, ...]
    """Accepted measurements of the app."""
    spread: float
    """The error of the expectation for each doubling of the distance to these, as a standard deviation of log T."""

    def rate(self, containers: float) -> float:
        return float(np.interp(containers, self.counts, self.rates))

    def uncertainty(self, containers: float) -> float:
        """Return the approximate relative error of the rate (one standard deviation)."""
        counts = self.counts[1:]
        return float(np.expm1(np.interp(containers, counts, _sigma(self.measured, counts, self.spread))))


class Known(NamedTuple):
    """Everything that a curve depends on; most of it stays the same from round to round, so it is the key of a cache of
    curves."""

    speed: tuple[tuple[int, float], ...]
    measured: tuple[Measured, ...]
    alike: tuple[Measured, ...]
    gang: int
    least: int
    most: int


def known_of(app: AppDemand) -> Known:
    gang = max(app.gang, 1)
    return Known(tuple(app.speed), app.measured, app.alike, gang, max(app.n_min, gang), app.n_max)


@lru_cache(maxsize=16_384)
def learned(known: Known) -> Learned:
    """Return the curve at counts up to n_max."""
    declared = sound(known.speed)
    return _learned(declared, believed(known.measured), believed(known.alike), known.gang, known.least, known.most)


@lru_cache(maxsize=16_384)
def sound(speed: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Return the plausible declared points, ascending."""
    return tuple(sorted({n: rate for n, rate in speed if 0 < n < _MOST and 1 / _MOST < rate < _MOST}.items()))


def largest(known: Known) -> int:
    """Return the largest count that was measured, on it or on the app like it; 0 for none."""
    return max((point.containers for point in (*believed(known.measured), *believed(known.alike))), default=0)


@lru_cache(maxsize=16_384)
def believed(measured: tuple[Measured, ...]) -> tuple[Point, ...]:
    """Return one point for each count, weighted by time, without implausible ones."""
    sums: dict[int, tuple[float, float]] = {}
    for measure in measured:
        if 0 < measure.containers < _MOST and 1 / _MOST < measure.steps_per_s < _MOST and 0 < measure.seconds < _MOST:
            total, seconds = sums.get(measure.containers, (0.0, 0.0))
            sums[measure.containers] = (
                total + math.log(measure.steps_per_s) * measure.seconds,
                seconds + measure.seconds,
            )
    points = [Point(n, math.exp(total / seconds), seconds) for n, (total, seconds) in sums.items()]
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (-point.seconds, point.containers)):
        against = [other for other in kept if not _both_true(point, other)]
        if not against:
            kept.append(point)
        elif any(2 * point.seconds >= other.seconds for other in against):  # It is unknown which of them is true.
            kept = [other for other in kept if other not in against]
    return tuple(sorted(kept))


def _both_true(first: Point, second: Point) -> bool:
    """Return whether an app can have both speeds: more containers are at most this many times slower or faster."""
    few, many = sorted((first, second))
    return 1 / _MOST_SLOWER <= many.rate / few.rate <= _MOST_FASTER * many.containers / few.containers


def _learned(
    declared: tuple[tuple[int, float], ...],
    measured: tuple[Point, ...],
    alike: tuple[Point, ...],
    gang: int,
    least: int,
    most: int,
) -> Learned:
    basis = "declared" if declared else "alike" if alike else "law"
    known = [*(n for n, _ in declared), *(point.containers for point in (*measured, *alike))]
    counts = _counts(gang, least, most, known)
    if len(declared) == 1:
        (n, rate), usual = declared[0], _log_time(np.minimum(counts, BEYOND * declared[0][0]), *USUAL)
        expected = math.log(rate) - usual + float(_log_time(np.array([float(n)]), *USUAL)[0])
    elif declared:
        expected = np.log(_between(declared, counts))
    elif alike:
        expected = _corrected(law(alike, counts), alike, counts)
    else:
        expected = law(measured, counts)
    spread = _SPREAD[basis]
    if measured:
        expected = _corrected(expected, measured, counts)
        basis = "measured"
    rates = np.exp(np.round(expected, 9))
    return Learned(
        basis,
        np.concatenate([[0.0], counts]),
        np.concatenate([[0.0], rates]),
        bool(declared or measured or alike),
        max((point.containers for point in (*measured, *alike)), default=0),
        measured,
        spread,
    )


def _counts(gang: int, least: int, most: int, known: list[int]) -> Floats:
    """Return where the curve is computed: at all known counts, and at powers of two of its smallest."""
    counts = {gang, least, most, *known}
    n = gang
    while n < most:
        counts.add(n)
        n *= 2
    return np.array(sorted(n for n in counts if n > 0), np.float64)


def _between(points: tuple[tuple[int, float], ...], counts: Floats) -> Floats:
    """Return rates linear between the points, in proportion below the first and flat beyond the last."""
    return np.interp(counts, [0.0, *(float(n) for n, _ in points)], [0.0, *(rate for _, rate in points)])


def law(points: tuple[Point, ...], counts: Floats) -> Floats:
    """Return the log of the rates by the law that fits the points best; relative to one container without points."""
    if not points:
        return -_log_time(counts, *USUAL)
    scale, shape = _fitted(points)
    return -(scale + _log_time(counts, *shape))


@lru_cache(maxsize=16_384)
def _fitted(points: tuple[Point, ...]) -> tuple[float, tuple[float, float, float]]:
    """Return log t and the shape that fit the points best, the first of equal ones."""
    time = -np.log(np.array([rate for _, rate, _ in points]))
    weight = np.array([trust(seconds) for *_, seconds in points]) / _NOISE**2
    if not weight.sum() > 0:  # None was measured long enough to have any weight.
        return 0.0, USUAL
    off = time - _times_on_grid(tuple(float(n) for n, *_ in points))
    scales = (weight * off).sum(axis=1) / weight.sum()
    costs = (weight * (off - scales[:, None]) ** 2).sum(axis=1) + _PENALTIES
    # Costs are compared to nine digits, and only those that may be the least are rounded.
    close = np.flatnonzero(costs <= costs.min() + 1e-8).tolist()
    best = min(close, key=lambda shape: (round(float(costs[shape]), 9), shape))
    return float(scales[best]), _GRID[best]


@lru_cache(maxsize=16_384)
def _times_on_grid(counts: tuple[float, ...]) -> Floats:
    """Return log T of these counts for each shape of the grid; apps are measured again and again at the same ones."""
    n = np.array(counts)
    return np.stack([_log_time(n, *shape) for shape in _GRID])


def _log_time(n: Floats, gamma: float, s: float, r: float) -> Floats:
    """Return log T for t = 1."""
    computing = 1.0 / n
    talking = np.where(n > 1, s * (1.0 + r * np.maximum(n - 2.0, 0.0)), 0.0)
    return np.asarray(np.log(computing**gamma + talking**gamma) / gamma)


def _unusual(gamma: float, s: float, r: float) -> float:
    """Return the penalty of parameters: a factor of 10 in s counts as much as one standard deviation of a point."""
    away = (math.log10(max(s, 0.001)) - math.log10(USUAL[1])) ** 2
    return away + (math.log(gamma)) ** 2 / 4 + (r / 0.1) ** 2 / 2


_PENALTIES = np.array([_unusual(*shape) for shape in _GRID])


def trust(seconds: float) -> float:
    """Return the weight of a point against an expectation, below 1: half after a quarter of a minute."""
    return seconds / (seconds + _MINUTE / 4)


def _corrected(expected: Floats, points: tuple[Point, ...], counts: Floats) -> Floats:
    """Return log rates moved towards the points, whose counts are among `counts`."""
    n = np.array([float(n) for n, *_ in points])
    sure = np.array([trust(seconds) for *_, seconds in points])
    off = np.log(np.array([rate for _, rate, _ in points])) - expected[np.searchsorted(counts, n)]
    middle = weighted_median(off, sure)
    bound = math.log(_FAR)
    off = np.minimum(np.maximum(off, middle - bound), middle + bound)
    # The level of an expectation without measurements has no weight against a measured one.
    return np.asarray(expected + np.interp(np.log(counts), np.log(n), middle + (off - middle) * sure))


def _sigma(points: tuple[Point, ...], counts: Floats, spread: float) -> Floats:
    """Return the standard deviation of the logarithm of each rate."""
    if not points:
        return np.full(len(counts), 2 * spread)
    at, x = np.log(np.array([float(n) for n, *_ in points])), np.log(counts)
    apart = np.abs(x[:, None] - at[None, :])
    noise = _NOISE * np.sqrt(_MINUTE / np.array([max(seconds, 1.0) for *_, seconds in points]))[apart.argmin(axis=1)]
    return np.asarray(np.sqrt(noise**2 + (spread * apart.min(axis=1) / math.log(2.0)) ** 2))


def weighted_median(values: Floats, weights: Floats) -> float:
    """Return the value below which half of the weight lies."""
    if len(values) == 1:
        return float(values[0])
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][int(np.searchsorted(total, total[-1] / 2))])
