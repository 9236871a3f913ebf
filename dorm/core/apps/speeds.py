"""How fast an app has worked, with which partitions: what a policy learns its speed from.

A point is a stretch of reported progress with the same members.  It follows from the first and the last report of the stretch
alone, so it does not matter how many reports between them are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.state import MeasuredSpeed
from dorm.policies.problem import Measured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import App, Generation, State

MOST_POINTS = 24
"""How many different partitions are remembered of an app: the longest measured ones."""
LATEST_NS = 3_600 * 10**9
"""Beyond this age a point counts half, so that the estimate follows an app whose steps change."""
LEAST_NS = 10**9
"""A shorter stretch says nothing."""


def point_of(state: State, generation: Generation) -> MeasuredSpeed | None:
    """Return what the current members have done since the membership began; None if too little was reported."""
    pace = generation.pace
    if pace is None or not generation.containers:
        return None
    first_at, first_step, since = pace.first_at, pace.first_step, generation.same_since
    if since is not None and since.at > first_at:
        first_at, first_step = since.at, since.step
    steps, ns = pace.last_step - first_step, pace.last_at - first_at
    if steps <= 0 or ns < LEAST_NS:
        return None
    names = {container.node: None for container in generation.containers.values()}
    types = {node.labels.get("type", ""): None for name in names if (node := state.nodes.get(name)) is not None}
    kind = next(iter(types)) if len(types) == 1 else ""
    return MeasuredSpeed(len(generation.containers), len(names), kind, steps, ns)


def with_point(points: list[MeasuredSpeed], new: MeasuredSpeed) -> list[MeasuredSpeed]:
    """Return the points, ascending by partition, with a further stretch added to the point of the same partition."""
    steps, ns = new.steps, new.ns
    others = []
    for point in points:
        if (point.containers, point.nodes, point.type) == (new.containers, new.nodes, new.type):
            steps, ns = steps + point.steps, ns + point.ns
        else:
            others.append(point)
    while ns > LATEST_NS:
        steps, ns = (steps + 1) // 2, ns // 2
    merged = MeasuredSpeed(new.containers, new.nodes, new.type, steps, ns)
    kept = sorted([*others, merged], key=lambda point: (point is not merged, -point.ns, point.containers, point.nodes))
    return sorted(kept[:MOST_POINTS], key=lambda point: (point.containers, point.nodes, point.type))


def measured(state: State, app: App) -> tuple[Measured, ...]:
    """Return what is known of the app's speed, with the stretch that it works in now."""
    points = app.speeds
    current = app.current
    if current is not None and current.released and (new := point_of(state, current)) is not None:
        points = with_point(points, new)
    return tuple(
        Measured(point.containers, point.steps * 1e9 / point.ns, point.ns / 1e9, point.nodes, point.type)
        for point in points
    )


class Alike:
    """Measurements of apps with the same image and command, for apps without measurements of their own.

    Only apps of the same user count: reports of one user's apps decide nothing for another's."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._types = {node.type for node in state.nodes.values()}
        self._of_types: dict[tuple[object, ...], tuple[Measured, ...]] = {}
        self._apps: dict[tuple[object, ...], list[App]] = {}
        for app in state.apps.values():
            if app.speeds or app.reports_progress:
                self._apps.setdefault(_likeness(app), []).append(app)

    def of(self, app: App) -> tuple[Measured, ...]:
        """Return the points of the app most like it: the latest submitted other app that has any."""
        for other in _latest(other for other in self._apps.get(_likeness(app), ()) if other is not app):
            if points := measured(self._state, other):
                return points
        return ()

    def of_types(self, app: App, known: tuple[Measured, ...]) -> tuple[Measured, ...]:
        """Return what shows how much faster a type of nodes is for apps like one that has not worked on several: the points of
        the latest that has, else of all of them together.  `known` are its own points."""
        if len(self._types) < 2 or len({point.type for point in known}) > 1:
            return ()
        like = _likeness(app)
        if like not in self._of_types:
            each = [measured(self._state, other) for other in _latest(self._apps.get(like, ()))]
            together = tuple(point for points in each for point in points)
            several = (points for points in (*each, together) if len({point.type for point in points}) > 1)
            self._of_types[like] = next(several, ())
        return self._of_types[like]


def _latest(apps: Iterable[App]) -> list[App]:
    return sorted(apps, key=lambda app: -app.seq)[:8]


def _likeness(app: App) -> tuple[object, ...]:
    return app.user, app.spec.image, *app.spec.command
