"""An app's speed by the number and placement of its containers.

A speed takes the containers by node, most first, such as (4, 4, 1), and returns units of work per second.  The workload
chooses the unit: seconds of one container, or steps.  Speeds are data, so a workload can be sent to another process and
compared.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


Course = tuple[tuple[float, float], ...]
"""Stretches in ascending order: the work at the end of each, and the units per second until then.  The last one has no end."""


class Speed(Protocol):
    """Deterministic and free of side effects."""

    def rate(self, placement: Sequence[int]) -> float:
        """Return units of work per second with these containers on each node, most first; 0 without containers."""
        ...


@runtime_checkable
class BatchSpeed(Speed, Protocol):
    """The speed of an app whose batch size may change, which differs from stretch to stretch of its work."""

    @property
    def batch(self) -> int:
        """Its batch size until another one is decided."""
        ...

    def course(self, placement: Sequence[int], batch: int) -> Course:
        """Return its course with these containers and this batch size; empty without containers."""
        ...

    def noise(self, done: float, batch: int) -> float:
        """Return the gradient noise scale that it measures with this batch size, after so much work."""
        ...


class Linear(msgspec.Struct, frozen=True, tag="linear"):
    """n containers do n times the work of one: the upper bound of all models, which ignores communication."""

    one: float = 1.0
    """Units per second of one container."""

    def rate(self, placement: Sequence[int]) -> float:
        return self.one * sum(placement)


class Amdahl(msgspec.Struct, frozen=True, tag="amdahl"):
    """A part of the work is sequential: S(n) = 1 / ((1 - p) + p / n) (Amdahl, AFIPS 1967)."""

    parallel: float
    """The parallel part p, from 0 to 1."""
    one: float = 1.0

    def rate(self, placement: Sequence[int]) -> float:
        n = sum(placement)
        return self.one / ((1 - self.parallel) + self.parallel / n) if n else 0.0


class Table(msgspec.Struct, frozen=True, tag="table"):
    """Measured rates: linear between the points, in proportion below the first, flat beyond the last."""

    points: tuple[tuple[int, float], ...]
    """Containers and units per second, ascending by containers."""

    def rate(self, placement: Sequence[int]) -> float:
        return interpolated(self.points, sum(placement))


def interpolated(points: Sequence[tuple[int, float]], n: int) -> float:
    """Return the rate at n containers from measured (containers, rate) pairs, ascending."""
    if n <= 0 or not points:
        return 0.0
    at = bisect_left(points, n, key=lambda point: point[0])
    if at == len(points):
        return points[-1][1]
    right, rate = points[at]
    if right == n:
        return rate
    if at == 0:
        return rate * n / right
    left, below = points[at - 1]
    return below + (rate - below) * (n - left) / (right - left)


def after(course: Course, done: float, seconds: float) -> float:
    """Return the work that is done this many seconds later."""
    for until, rate in course:
        if done < until:
            takes = (until - done) / rate
            if takes > seconds:
                return done + rate * seconds
            done, seconds = until, seconds - takes
    return done


def seconds_until(course: Course, done: float, until: float) -> float:
    """Return the seconds until this much work is done."""
    seconds = 0.0
    for end, rate in course:
        if done < end:
            stretch = min(end, until)
            if stretch > done:
                seconds += (stretch - done) / rate
                done = stretch
    return seconds


def rate_at(course: Course, done: float) -> float:
    """Return the units per second after this much work."""
    return next((rate for until, rate in course if done < until), 0.0)
