"""Goodput as the speed of an app: for policies that know speeds and no batch sizes.

`Tuning(problem)` replaces the speed of each app that accepts a range of batch sizes by its goodput with the best one, by
containers on as few nodes as hold them.  Both are in steps of the initial batch size per second, so remaining steps stay the
same.  Once the policy has answered, `batches` are the sizes that belong to its counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from dorm.policies import integer
from dorm.policies.speed import throughput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.integer import Floats, Instance, Ints
    from dorm.policies.problem import AppDemand, Batch, Problem
    from dorm.policies.speed.throughput import Points

MOST_COUNT = 4096
"""Units of one app beyond which it gets no more than its n_min."""
EACH = 16
"""Up to this count a curve has a point for each number of containers; beyond, for each quarter more."""


class _Tuned(NamedTuple):
    """An app's goodput on one type of nodes, by the counts of its curve."""

    counts: Ints
    rates: Floats
    """Rates on as few nodes as hold this many."""
    batches: Ints
    """The best batch sizes: the first row on one node, the second across nodes."""


class Tuning:
    """The apps of one problem that accept a range of batch sizes.  `problem` is the same without batch sizes."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._tuned: dict[str, dict[str | None, _Tuned]] = {}
        """Tuned sizes by app and type of nodes; None for all types that have no speed of their own."""
        self._type_of = {node.id: node.type for node in problem.nodes}
        if any(app.batch is not None and (app.speed or app.speed_on) for app in problem.apps):
            self._tune()

    def _tune(self) -> None:
        instance = integer.read(self.problem)
        for i, app in enumerate(instance.apps):
            if app.batch is not None and (app.speed or app.speed_on):
                here = per_node(instance, i) * int(instance.gang[i])
                curves: dict[str | None, Points] = {None: app.speed}
                curves.update(app.speed_on.items())
                self._tuned[app.id] = {type_: _tuned(app, app.batch, points, here) for type_, points in curves.items()}
        apps = tuple(self._without(app) if app.id in self._tuned else app for app in self.problem.apps)
        self.problem = msgspec.structs.replace(self.problem, apps=apps)

    def _without(self, app: AppDemand) -> AppDemand:
        """Return the app with goodput for speed, and without a range of batch sizes."""
        curves = {
            type_: tuple((int(n), float(rate)) for n, rate in zip(curve.counts, curve.rates, strict=True))
            for type_, curve in self._tuned[app.id].items()
        }
        return msgspec.structs.replace(
            app,
            speed=curves[None],
            speed_on={type_: curves[type_] for type_ in app.speed_on},
            measured=(),  # They were measured with other batch sizes than the best.
            batch=None,
        )

    def batches(self, counts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """Return the best batch size of each of these apps that has containers, by their counts by node: the batch size
        of the next count of its curve."""
        sizes = {}
        for name, tuned in sorted(self._tuned.items()):
            row = counts.get(name, {})
            if not row:
                continue
            type_ = self._type_of.get(min(row), "")
            curve = tuned[type_ if type_ in tuned else None]
            place = min(int(np.searchsorted(curve.counts, sum(row.values()))), len(curve.counts) - 1)
            if place >= 0:
                sizes[name] = int(curve.batches[int(len(row) > 1), place])
        return sizes


def per_node(instance: Instance, app: int) -> int:
    """Return the most units of the app that any node holds while it is empty, at least 1."""
    needs = instance.demand[app] > 0
    usable = instance.eligible[instance.requirement[app]]
    if not needs.any() or not usable.any():
        return max(int(instance.n_max[app]), 1)
    held = (instance.capacity[usable][:, needs] // instance.demand[app][needs]).min(axis=1)
    return max(int(held.max()), 1)


def _counts(most: int, gang: int) -> Ints:
    """Return the counts of a curve, ascending."""
    counts = set(range(gang, min(most, EACH * gang) + 1, gang))
    n = EACH * gang
    while n <= most:
        counts.add(n)
        n += max(n // 4 // gang, 1) * gang
    counts.add(max(most // gang, 1) * gang)
    return np.array(sorted(counts), np.int64)


def _tuned(app: AppDemand, batch: Batch, points: Points, here: int) -> _Tuned:
    usable = throughput.known(points)
    if not usable:
        return _Tuned(np.zeros(0, np.int64), np.zeros(0), np.zeros((2, 0), np.int64))
    counts = _counts(min(app.n_max, MOST_COUNT), max(app.gang, 1))
    given = throughput.goodputs(usable, batch, counts, here)
    rows = (counts > here).astype(np.int64), np.arange(len(counts))
    return _Tuned(counts, given.values[rows], given.batches)
