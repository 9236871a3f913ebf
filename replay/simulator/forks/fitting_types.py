"""How much faster a log's apps are on some types of nodes (the label `type`), as `dorm-speed` learns it from their reports.

All paces are stated for one type, on which most was measured.  A partition on several types works at the pace of the slowest.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from dorm.policies.problem import AppDemand, Measured
from dorm.policies.speed.by_type import by_type, typed_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from replay.simulator.forks.history import Course, History
    from replay.simulator.speed import Speed

LIKE = 8
"""Number of the latest similar apps that show how much faster a type is."""


class SpeedOnTypes(NamedTuple):
    """An app's speed on the type of the stated paces, and how many times as fast it is on others."""

    speed: Speed
    faster: Mapping[str, float]

    def rate(self, placement: Sequence[int], types: Iterable[str]) -> float:
        return self.speed.rate(placement) * pace_on(self.faster, types)


def pace_on(faster: Mapping[str, float], types: Iterable[str]) -> float:
    """Return how many times as fast an app is on nodes of these types together; 1 if nothing is known."""
    return min((faster.get(name, 1.0) for name in types), default=1.0) if faster else 1.0


class TypesSeen:
    """A history's measurements of the types of nodes."""

    def __init__(self, history: History) -> None:
        self.names = tuple(sorted(set(history.type_of.values())))
        seconds = dict.fromkeys(self.names, 0.0)
        for course in history.courses.values():
            for point in _measured(course):
                if point.type in seconds:
                    seconds[point.type] += point.seconds
        self.stated = min(seconds, key=lambda name: (-seconds[name], name), default="")
        """The type of the stated paces."""

    def faster(self, course: Course, alike: Callable[[], tuple[Measured, ...]]) -> dict[str, float]:
        """Return how many times as fast an app is on each type, if that differs; `alike` returns measurements of apps
        like it (`on_several`)."""
        if len(self.names) < 2:
            return {}
        spec, own = course.spec, _measured(course)
        demand = AppDemand(
            course.app,
            {},
            1.0,
            spec.n_min,
            spec.n_max,
            gang=max(spec.gang, 1),
            speed=_points(spec.speed),
            speed_on={kind: _points(points) for kind, points in spec.speed_on.items()},
            measured=own,
            alike_by_type=() if _several(own) else alike(),
        )
        typed = typed_of(demand, self.names)
        curves = by_type(typed) if typed is not None else None
        if curves is None:
            return {}
        stated = curves.ratios.get(self.stated, 1.0)
        return {name: ratio / stated for name, ratio in curves.ratios.items() if ratio != stated}

    def declared(self, course: Course, faster: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        """Return the declared speed on the type of the stated paces."""
        spec = course.spec
        if points := _points(spec.speed_on.get(self.stated, spec.speed)):
            return points
        for kind in sorted(spec.speed_on):
            times = faster.get(kind, 1.0)
            return tuple((n, rate / times) for n, rate in _points(spec.speed_on[kind]))
        return ()


def _points(speed: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    return tuple((int(n), float(rate)) for n, rate in speed)


def _measured(course: Course) -> tuple[Measured, ...]:
    """Return its paces on known types; like `dorm-speed`, it ignores partitions on several types."""
    return tuple(
        Measured(
            stretch.containers,
            stretch.rate,
            stretch.rated_s,
            len(stretch.counts),
            stretch.types[0] if len(stretch.types) == 1 else "",
        )
        for stretch in course.stretches
        if stretch.rate > 0 and stretch.containers and stretch.types and stretch.rated_s > 0
    )


def _several(points: Iterable[Measured]) -> bool:
    return len({point.type for point in points}) > 1


def on_several(like: Sequence[Course]) -> tuple[Measured, ...]:
    """Return the paces of the latest alike app that worked on several types, else those of all of them together."""
    each = [_measured(course) for course in heapq.nlargest(LIKE, like, key=lambda course: course.submitted_at)]
    together = tuple(point for points in each for point in points)
    return next((points for points in (*each, together) if _several(points)), ())
