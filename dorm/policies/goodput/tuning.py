"""Goodput as the speed of an app: for policies that know speeds and no batch sizes.

`Tuning(problem)` replaces the speed of each app that accepts a range of batch sizes by its goodput with the best one, by
containers on as few nodes as hold them.  Both are in steps of the initial batch size per second, so remaining steps stay what
they are.  Once the policy has answered, `batches` are the sizes that belong to its counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dorm.policies import integer
from dorm.policies.goodput import throughput
from dorm.policies.goodput.bounds import MOST_COUNT, per_node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.goodput.throughput import Points
    from dorm.policies.integer import Ints
    from dorm.policies.problem import AppDemand, Batch, Problem

EACH = 16
"""Up to this count a curve has a point for each number of containers; beyond, for each quarter more."""


class Tuning:
    """The apps of one problem that accept a range of batch sizes.  `problem` is the same without batch sizes."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._apps: dict[str, tuple[AppDemand, Batch, int]] = {}
        """App, range and the containers that a node holds of it, by id."""
        self._type_of = {node.id: node.type for node in problem.nodes}
        if any(app.batch is not None and (app.speed or app.speed_on) for app in problem.apps):
            self._tune()

    def _tune(self) -> None:
        instance = integer.read(self.problem)
        for i, app in enumerate(instance.apps):
            if app.batch is not None and (app.speed or app.speed_on):
                self._apps[app.id] = app, app.batch, per_node(instance, i) * int(instance.gang[i])
        apps = tuple(self._tuned(app) if app.id in self._apps else app for app in self.problem.apps)
        self.problem = msgspec.structs.replace(self.problem, apps=apps)

    def _tuned(self, app: AppDemand) -> AppDemand:
        _, batch, here = self._apps[app.id]
        counts = _counts(min(app.n_max, MOST_COUNT), max(app.gang, 1))
        return msgspec.structs.replace(
            app,
            speed=_curve(throughput.known(app.speed), batch, counts, here),
            speed_on={
                type_: _curve(throughput.known(points), batch, counts, here) for type_, points in app.speed_on.items()
            },
            measured=(),  # Of other batch sizes than the best.
            batch=None,
        )

    def batches(self, counts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """Return the best batch size of each of these apps that has containers, by their counts by node."""
        found = {}
        for name, (app, batch, here) in sorted(self._apps.items()):
            row = counts.get(name, {})
            n = sum(row.values())
            points = throughput.of_app(app, self._type_of.get(min(row), "")) if n else ()
            if points:
                best = throughput.goodputs(points, batch, np.array([n], np.int64), here).batches
                found[name] = int(best[int(len(row) > 1), 0])
        return found


def _counts(most: int, gang: int) -> Ints:
    """Return the counts of a curve, ascending."""
    found = set(range(gang, min(most, EACH * gang) + 1, gang))
    n = EACH * gang
    while n <= most:
        found.add(n)
        n += max(n // 4 // gang, 1) * gang
    found.add(max(most // gang, 1) * gang)
    return np.array(sorted(found), np.int64)


def _curve(points: Points, batch: Batch, counts: Ints, here: int) -> Points:
    if not points:
        return ()
    values = throughput.goodputs(points, batch, counts, here).values
    rates = values[(counts > here).astype(np.int64), np.arange(len(counts))]
    return tuple((int(n), float(rate)) for n, rate in zip(counts, rates, strict=True))
