"""Nodes of several types, and apps whose speeds are declared or measured, for the problems of a `World`.

Choices, and why:

* Each node has one of the types by chance, whatever its shape.
* All apps have steps, and a speed that grows less than in proportion: n / (1 + s (n - 1)), with s from 0.001 to 0.03.
* Half of the apps are as fast on all types; of the others, each type is 1 to 4 times as fast as the slowest.
* A third of the apps declare all that.  Of the others it is measured: each minute adds a stretch to the point of the present
  partition, 5 % off the truth.  So nearly all curves change from problem to problem, as they do on a cluster whose apps
  report their progress.

Randomness comes from the seed and from names alone, so what an app is does not depend on the answers.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm.policies.problem import Measured, Problem
from dorm_lab.bench.optimizer.workload import EVENT_S

if TYPE_CHECKING:
    from dorm.policies.problem import AppDemand

DECLARE, DIFFER = 1 / 3, 1 / 2
"""Parts of the apps that declare their speed, and of those to which types matter."""
MOST_FASTER = 4.0
NOISE = 0.05
LATEST_S = 3600.0
"""A point that was measured for longer counts as measured for this long, as on a cluster."""


class _Nature(NamedTuple):
    """The true properties of an app, which a policy has to find out."""

    slowing: float
    faster: dict[str, float]
    declares: bool

    def rate(self, containers: int, types: set[str]) -> float:
        """Return steps per second on nodes of these types: the pace of the slowest."""
        return min(self.faster[name] for name in types) * containers / (1.0 + self.slowing * (containers - 1))


class _Known(msgspec.Struct):
    """What is known of an app by now."""

    nature: _Nature
    steps: float
    served_s: float = 0.0
    age_s: float = 0.0
    points: dict[tuple[int, int, str], tuple[float, float]] = {}
    """Steps and seconds by containers, nodes and type."""


class Types:
    """The apps of one world, with types of nodes.  Call `problem` once with each of its problems, in order."""

    def __init__(self, types: int, seed: int) -> None:
        self._names = tuple(f"type-{number}" for number in range(types))
        self._seed = seed
        self._apps: dict[str, _Known] = {}
        self._chance = random.Random(f"{seed}/noise")

    def problem(self, problem: Problem) -> Problem:
        """Return the problem with the present knowledge, a minute after the last one."""
        nodes = tuple(
            msgspec.structs.replace(node, labels={**node.labels, "type": self._type_of(node.id)})
            for node in problem.nodes
        )
        self._apps = {app.id: self._apps.get(app.id) or self._arrived(app) for app in problem.apps}
        return Problem(nodes, tuple(map(self._seen, problem.apps)), problem.at_s)

    def _type_of(self, node: str) -> str:
        return random.Random(f"{self._seed}/type/{node}").choice(self._names)

    def _arrived(self, app: AppDemand) -> _Known:
        chance = random.Random(f"{self._seed}/nature/{app.id}")
        differs = chance.random() < DIFFER
        faster = {name: chance.uniform(1.0, MOST_FASTER) if differs else 1.0 for name in self._names}
        nature = _Nature(0.001 * 30.0 ** chance.random(), faster, chance.random() < DECLARE)
        hours = chance.lognormvariate(0.0, 1.0)
        return _Known(nature, steps=3600.0 * hours * nature.rate(max(app.n_max // 2, 1), set(self._names)))

    def _seen(self, app: AppDemand) -> AppDemand:
        """Return the app after another minute with its present containers."""
        known = self._apps[app.id]
        nature, count = known.nature, sum(app.current.values())
        known.age_s += EVENT_S
        if count:
            types = {self._type_of(node) for node in app.current}
            done = EVENT_S * nature.rate(count, types)
            known.served_s += EVENT_S * count
            known.steps = max(known.steps - done, 1.0)
            kind = next(iter(types)) if len(types) == 1 else ""
            place = count, len(app.current), kind
            steps, seconds = known.points.get(place, (0.0, 0.0))
            factor = min(1.0, (LATEST_S - EVENT_S) / max(seconds, EVENT_S))
            steps = steps * factor + done * self._chance.uniform(1 - NOISE, 1 + NOISE)
            known.points[place] = steps, seconds * factor + EVENT_S
        now = msgspec.structs.replace(
            app, age_s=known.age_s, served_s=known.served_s, remaining_steps=known.steps, measured=self._measured(known)
        )
        return self._declared(now, nature) if nature.declares else now

    def _measured(self, known: _Known) -> tuple[Measured, ...]:
        return tuple(
            Measured(containers, steps / seconds, seconds, nodes, kind)
            for (containers, nodes, kind), (steps, seconds) in sorted(known.points.items())
        )

    def _declared(self, app: AppDemand, nature: _Nature) -> AppDemand:
        counts = sorted({1, app.n_min, max(app.n_max // 4, 1), max(app.n_max // 2, 1), app.n_max})
        on = {name: tuple((n, nature.rate(n, {name})) for n in counts) for name in self._names}
        if len(set(nature.faster.values())) == 1:
            return msgspec.structs.replace(app, speed=on[self._names[0]])
        return msgspec.structs.replace(app, speed_on=on)
