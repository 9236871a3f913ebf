"""How fast an app is on nodes of each type (`NodeRoom.type`).

The curve of a type is based, in this order, on

    what the app's owner declares for the type, else for any type
    what was measured on the type
    what was measured on other types, times how much faster this type is: for the app, or for an app like it
    the curve without types (`learning`), if none of these is known

A ratio of two types follows from pairs of points, one on each.  Points at different counts are compared by the law of a step
that fits the type which was measured longer.  A ratio counts by how long its points were measured, as points of a curve do.
Ratios beyond `MOST_RATIO` are errors of measurement, and ones closer to 1 than `ALIKE` are noise.

Training is synchronous: each step waits for the last worker, so a partition on nodes of several types works at the pace of the
slowest of them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from dorm.policies.speed.learning import believed, known_of, law, learned, sound, trust, weighted_median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.problem import AppDemand, Measured
    from dorm.policies.speed.learning import Known, Learned

    Declared = tuple[tuple[int, float], ...]

MOST_RATIO = 20.0
"""No type counts as more than this many times as fast as another."""
ALIKE = 0.05
"""A smaller relative difference between two types counts as noise."""
ELSEWHERE = 0.25
"""A second of measurement on another type counts as this many on this one."""


class Typed(NamedTuple):
    """Everything that the curves by type depend on."""

    known: Known
    speed_on: tuple[tuple[str, Declared], ...]
    alike_by_type: tuple[Measured, ...]
    types: tuple[str, ...]


class ByType(NamedTuple):
    """Curves by type; the ratios are those to the type that was measured longest, or was declared first."""

    curves: dict[str, Learned]
    known: dict[str, Known]
    """Knowledge from which each of these curves follows."""
    ratios: dict[str, float]
    """Speed of each type for this app, in multiples of the base type's; a type of which nothing is known is missing."""

    def on(self, name: str, measured: tuple[Measured, ...]) -> tuple[Measured, ...]:
        """Return further measurements as they would have been on a type, as far as that is known."""
        return _converted(measured, name, {each: math.log(ratio) for each, ratio in self.ratios.items()})


def typed_of(app: AppDemand, types: Sequence[str]) -> Typed | None:
    """Return what the app's curves on these types depend on; None if no difference between them can be known."""
    if len(types) < 2 or not (app.speed_on or app.measured or app.alike or app.alike_by_type):
        return None
    speed_on = tuple((name, tuple(app.speed_on[name])) for name in types if sound(tuple(app.speed_on.get(name, ()))))
    points = (*app.measured, *app.alike, *app.alike_by_type)
    if not speed_on and len({point.type for point in points}) < 2:
        return None
    return Typed(known_of(app), speed_on, app.alike_by_type, tuple(types))


@lru_cache(maxsize=16_384)
def by_type(typed: Typed) -> ByType | None:
    """Return the app's curves by type; None if no difference between types is known."""
    known, declared = typed.known, _declared(typed)
    logs = _ratios(typed._replace(known=known._replace(least=0, most=0)))  # They do not depend on its bounds.
    if not typed.speed_on and not any(logs.values()):
        return None
    on = dict.fromkeys(typed.types, known)
    for name in logs:
        on[name] = known._replace(
            speed=declared.get(name, ()),
            measured=_converted(known.measured, name, logs),
            alike=_converted(known.alike, name, logs),
        )
    curves = {name: learned(measures) for name, measures in on.items()}
    return ByType(curves, on, {name: math.exp(value) for name, value in sorted(logs.items())})


def _declared(typed: Typed) -> dict[str, Declared]:
    """Return the declared speed on each type.  Where only some types have one, the others have the slowest of these."""
    if not typed.speed_on:
        return dict.fromkeys(typed.types, typed.known.speed) if typed.known.speed else {}
    of_some = dict(typed.speed_on)
    other = sound(typed.known.speed) or min(of_some.values(), key=lambda points: (sound(points)[0][1], points))
    return {name: of_some.get(name, other) for name in typed.types}


@lru_cache(maxsize=16_384)
def _ratios(typed: Typed) -> dict[str, float]:
    """Return the logarithm of how much faster each type is than one of them, for those of which it is known."""
    known, declared = typed.known, _declared(typed)
    base = _longest(typed)
    if base is None:
        return {}
    ratios = {base: 0.0}
    for name in typed.types:
        if name == base:
            continue
        own, sure = _ratio(known.measured, name, base)
        like, likely = _ratio((*known.alike, *typed.alike_by_type), name, base)
        if typed.speed_on:
            like, likely = _declared_ratio(declared[name], declared[base]), 1.0
        if sure or likely:
            value = own * sure + like * likely * (1.0 - sure)
            ratios[name] = round(value, 9) if abs(value) > math.log1p(ALIKE) else 0.0
    return ratios


def _longest(typed: Typed) -> str | None:
    """Return the type that was measured longest, else the first that is declared; None if there is neither."""
    for points in (typed.known.measured, typed.known.alike, typed.alike_by_type):
        seconds: dict[str, float] = {}
        for point in points:
            if point.type in typed.types and 0 < point.seconds < math.inf:
                seconds[point.type] = seconds.get(point.type, 0.0) + point.seconds
        if seconds:
            return min(seconds, key=lambda name: (-seconds[name], name))
    return typed.speed_on[0][0] if typed.speed_on else None


def _ratio(measured: tuple[Measured, ...], name: str, base: str) -> tuple[float, float]:
    """Return the logarithm of how much faster a type is than another, by what was measured on both, and its weight; twice 0 if
    one of them was not measured."""
    here, there = (believed(tuple(measure for measure in measured if measure.type == each)) for each in (name, base))
    if not here or not there:
        return 0.0, 0.0
    longer = here if sum(point.seconds for point in here) > sum(own.seconds for own in there) else there
    counts = np.array(sorted({float(measure.containers) for measure in (*here, *there)}))
    expected = dict(zip(counts.tolist(), law(longer, counts).tolist(), strict=True))
    values, weights = [], []
    for own in here:
        for other in there:
            shape = expected[float(own.containers)] - expected[float(other.containers)]
            values.append(math.log(own.rate / other.rate) - shape)
            apart = abs(math.log2(own.containers / other.containers))
            weights.append(min(trust(own.seconds), trust(other.seconds)) / (1.0 + apart))
    middle = weighted_median(np.array(values), np.array(weights))
    bound = math.log(MOST_RATIO)
    return min(max(middle, -bound), bound), max(weights)


@lru_cache(maxsize=16_384)
def _declared_ratio(here: Declared, there: Declared) -> float:
    """Return the same by what is declared for both: the median over the declared counts."""
    points = [sound(here), sound(there)]
    counts = np.array(sorted({float(n) for each in points for n, _ in each}))
    rates = [np.interp(counts, [0.0, *(n for n, _ in each)], [0.0, *(rate for _, rate in each)]) for each in points]
    bound = math.log(MOST_RATIO)
    return float(np.clip(np.median(np.log(rates[0] / rates[1])), -bound, bound))


def _converted(measured: tuple[Measured, ...], name: str, logs: dict[str, float]) -> tuple[Measured, ...]:
    """Return the points of a type, and those of others as they would have been on it.  A point without a type was measured on
    several types, at the pace of the slowest.  Points on types that are gone count only if there are no others."""
    slowest = min(logs, key=lambda each: (logs[each], each))
    converted = []
    for measure in measured:
        on = measure.type if measure.type or measure.type in logs else slowest
        if measure.type == name:
            converted.append(measure)
        elif on in logs:
            rate = measure.steps_per_s * math.exp(logs[name] - logs[on])
            converted.append(msgspec.structs.replace(measure, steps_per_s=rate, seconds=measure.seconds * ELSEWHERE))
    return tuple(converted) or measured
