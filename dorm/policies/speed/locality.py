"""How much slower an app is across nodes than on one: for some apps a node that holds all their containers is worth more
than more containers.

    T_across(n) = T(1) / n + s        s = the least T(m) - T(1) / m of the counts m that no single node holds

A curve is the speed on as few nodes as possible, so beyond what one node holds it shows what crossing nodes costs: the time s
of a step that more containers do not shorten (Pollux, OSDI 2021, §3.2, with γ = 1).  For fewer containers on several nodes the
same time is added, and what was measured that way corrects it.  Such measurements say nothing about one node, so they are no
part of the curve once the speed there is known otherwise.

Where types of nodes matter to an app, each type has its own curve, its own largest node, and so its own cost of crossing.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dorm.policies.matching import satisfies
from dorm.policies.speed.by_type import by_type, typed_of
from dorm.policies.speed.curves import curve_of
from dorm.policies.speed.learning import believed, known_of, learned, sound, trust, weighted_median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.policies.problem import AppDemand, Measured, NodeRoom, Problem
    from dorm.policies.speed.learning import Known

BEYOND = 4
"""The cost of crossing nodes is read from the curve up to this many nodes."""
MATTERS = 0.98
"""An app that keeps at least this part of its speed across nodes may be anywhere."""
MOST_HERE = 1024
"""Apps of which one node holds more containers may be anywhere."""
MOST_OFF = 2.0
"""A measurement changes the expected speed across nodes at most by this factor."""


class Locality:
    """The apps of one problem; `problem` is the same with curves of one node."""

    def __init__(self, problem: Problem) -> None:
        self.here = _on_one_node(problem)
        """Largest number of containers that one empty node of a type holds, by app and type."""
        self.spread: dict[str, tuple[Measured, ...]] = {}
        """Measurements on more nodes than necessary, by app."""
        apps = tuple(self._on_few(app) for app in problem.apps)
        self.problem = msgspec.structs.replace(problem, apps=apps) if self.spread else problem

    def _on_few(self, app: AppDemand) -> AppDemand:
        """Return the app without measurements of several nodes where one would have been enough, as far as its speed on one
        node is known otherwise: declared, or measured with as many containers."""
        here = self.here[app.id]
        largest = max(here.values(), default=0)

        def apart(measure: Measured) -> bool:
            return measure.nodes > 1 and measure.containers <= here.get(measure.type, largest)

        near = (measured.containers for measured in app.measured if not apart(measured))
        known = largest if app.speed or app.speed_on else max(near, default=0)
        spread = tuple(measured for measured in app.measured if apart(measured) and measured.containers <= known)
        if not spread:
            return app
        self.spread[app.id] = spread
        return msgspec.structs.replace(
            app, measured=tuple(measured for measured in app.measured if measured not in spread)
        )

    def across(self, app: AppDemand) -> tuple[float, ...] | None:
        """Return the part of its speed that an app keeps across nodes, for 0, 1, … units up to those that one node holds;
        None if it may be anywhere.  It is an app of `problem`, to which types do not matter."""
        return self._kept(app, known_of(app), max(self.here[app.id].values(), default=0), self.spread.get(app.id, ()))

    def across_on(self, app: AppDemand, types: Sequence[str]) -> dict[str, tuple[float, ...]]:
        """Return the same for each of these types, if they matter to the app; types on which it may be anywhere are
        missing."""
        typed = typed_of(app, types)
        curves = by_type(typed) if typed is not None else None
        if curves is None:
            return {}
        here, spread = self.here[app.id], self.spread.get(app.id, ())
        each = (
            (name, self._kept(app, curves.known[name], here.get(name, 0), curves.on(name, spread) if spread else ()))
            for name in types
        )
        return {name: kept for name, kept in each if kept is not None}

    def _kept(self, app: AppDemand, known: Known, here: int, spread: tuple[Measured, ...]) -> tuple[float, ...] | None:
        units = here // max(app.gang, 1)
        return _across(known, units, spread) if 2 <= units <= MOST_HERE else None


@lru_cache(maxsize=16_384)
def _across(known: Known, units: int, spread: tuple[Measured, ...]) -> tuple[float, ...] | None:
    gang, curve = known.gang, curve_of(known)
    points = {
        *(n for n, _ in sound(known.speed)),
        *(point.containers for point in believed((*known.measured, *known.alike))),
    }
    beyond = sorted(n // gang for n in points if n % gang == 0 and units < n // gang <= BEYOND * units)
    if not beyond and not spread:
        return None
    crossing = max(0.0, min((1 / curve.one(n) - 1 / n for n in beyond), default=0.0))
    near = [curve.one(n) for n in range(1, units + 1)]  # Plain numbers: most nodes hold few containers.
    speeds = [near[0], *(min(rate, 1 / (1 / n + crossing)) for n, rate in enumerate(near[1:], 2))]
    seen = [(point, speeds[point.containers // gang - 1]) for point in believed(spread) if point.containers >= 2 * gang]
    if seen and (of := learned(known)).absolute:
        off = np.array([math.log(point.rate / (of.rate(gang) * expected)) for point, expected in seen])
        middle = weighted_median(off, np.array([trust(point.seconds) for point, _ in seen]))
        bound = math.log(MOST_OFF)
        sure = trust(sum(point.seconds for point, _ in seen))
        factor = math.exp(round(sure * min(max(middle, -bound), bound), 9))
        speeds = [near[0], *(min(rate, measured * factor) for rate, measured in zip(near[1:], speeds[1:], strict=True))]
    kept = [speed / rate for speed, rate in zip(speeds, near, strict=True)]
    return None if min(kept) >= MATTERS else (1.0, *kept)


def _on_one_node(problem: Problem) -> dict[str, dict[str, int]]:
    """Return how many containers of each app one empty node of each type holds at most."""
    nodes = [node for node in problem.nodes if not node.drained]
    shapes: dict[str, list[tuple[str, dict[str, int]]]] = {}
    shared: dict[tuple[str, tuple[tuple[str, int], ...]], dict[str, int]] = {}
    held = {}
    for app in problem.apps:
        key = (app.require, tuple(sorted(app.demand.items())))
        if key not in shared:
            if app.require not in shapes:
                shapes[app.require] = _shapes(nodes, app.require)
            needs = [(kind, amount) for kind, amount in app.demand.items() if amount > 0]
            held_by: dict[str, int] = {}
            for type_, shape in shapes[app.require]:
                here = min((shape.get(kind, 0) // amount for kind, amount in needs), default=0)
                held_by[type_] = max(held_by.get(type_, 0), here)
            shared[key] = held_by
        held[app.id] = shared[key]
    return held


def _shapes(nodes: Sequence[NodeRoom], require: str) -> list[tuple[str, dict[str, int]]]:
    """Return the different types and capacities of the nodes that satisfy a requirement."""
    if require:
        labelled = {tuple(sorted(node.labels.items())): node.labels for node in nodes}
        good = {key for key, labels in labelled.items() if satisfies(require, labels)}
        nodes = [node for node in nodes if tuple(sorted(node.labels.items())) in good]
    different: Mapping[tuple[str, tuple[tuple[str, int], ...]], dict[str, int]] = {
        (node.type, tuple(sorted(node.capacity.items()))): node.capacity for node in nodes
    }
    return [(type_, capacity) for (type_, _), capacity in different.items()]
