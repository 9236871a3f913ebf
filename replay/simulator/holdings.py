"""Each app's holdings in a cluster, kept as arrays, so utilization and fairness loss at any moment cost one sort.

A trace of a month has thousands of moments to sample with hundreds of apps each; reading the whole state again at each of them
would take longer than the run.  The figures are those of `dorm.core.query.standing`, by the same `dorm.policies.shares`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import shares
from dorm.policies.integer import LOSS_TOLERANCE
from dorm.policies.matching import satisfies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.core.state import App, Node


class Holdings:
    """The live apps, one row each.  The last row replaces the row of an ended app, so the cost of figures does not grow
    with the past."""

    def __init__(self, nodes: Mapping[str, Node], *, whole: bool = False) -> None:
        """`nodes` may change; call `nodes_changed` then.  `whole`: include nodes that are down or drained for now."""
        self._whole = whole
        self._nodes = nodes
        self._stale = True
        self._totals: dict[str, int] = {}
        """Totals by kind of resource that any usable node has."""
        self._shapes: list[tuple[dict[str, int], dict[str, str], int]] = []
        """Capacity and labels of identical usable nodes, and their number."""
        self._apps: list[App] = []
        self._row: dict[str, int] = {}
        self._fits_of: dict[tuple[object, ...], int] = {}
        self._count = np.zeros(64, np.int64)
        self._gang = np.ones(64, np.int64)
        self._weight = np.zeros(64)
        self._cap = np.zeros(64, np.int64)
        self._fractions = np.zeros((64, 0))
        self._seen: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self._apps)

    @property
    def running(self) -> int:
        return int(np.count_nonzero(self._count[: len(self._apps)]))

    @property
    def kinds(self) -> tuple[str, ...]:
        self._read_nodes()
        return tuple(self._totals)

    def nodes_changed(self) -> None:
        """Mark the nodes as changed; they are read at the next use, since many may join at once."""
        self._stale, self._seen = True, None

    def _read_nodes(self) -> None:
        if not self._stale:
            return
        self._stale = False
        alike: dict[tuple[object, ...], tuple[dict[str, int], dict[str, str], int]] = {}
        for node in sorted(self._nodes.values(), key=lambda node: node.id):
            if node.usable or self._whole:
                key = (*sorted(node.capacity.items()), *sorted(node.labels.items()))
                size = alike[key][2] if key in alike else 0
                alike[key] = (node.capacity, node.labels, size + 1)
        self._shapes = list(alike.values())
        totals: dict[str, int] = {}
        for capacity, _, size in self._shapes:
            for kind, amount in capacity.items():
                totals[kind] = totals.get(kind, 0) + amount * size
        self._totals = {kind: total for kind, total in sorted(totals.items()) if total > 0}
        self._fits_of = {}
        self._fractions = np.zeros((len(self._count), len(self._totals)))
        for row, app in enumerate(self._apps):
            self._describe(row, app)

    def put(self, app: App, count: int) -> None:
        """Set the number of containers that a live app holds."""
        self._read_nodes()
        row = self._row.get(app.id)
        if row is None:
            row = self._row[app.id] = len(self._apps)
            self._apps.append(app)
            if row == len(self._count):
                self._grow()
            self._describe(row, app)
        self._count[row] = count
        self._seen = None

    def describe(self, app: App) -> None:
        """Take over an app's changed bounds or weight."""
        if app.id in self._row and not self._stale:
            self._describe(self._row[app.id], app)
            self._seen = None

    def drop(self, app: str) -> None:
        row = self._row.pop(app, None)
        if row is None:
            return
        last = len(self._apps) - 1
        moved = self._apps.pop()
        if row != last:
            self._apps[row] = moved
            self._row[moved.id] = row
            for column in (self._count, self._gang, self._weight, self._cap, self._fractions):
                column[row] = column[last]
        self._seen = None

    def figures(self) -> tuple[float, float]:
        """Return utilization and fairness loss, as the Dorm paper defines them, of the present holdings."""
        self._read_nodes()
        if self._seen is None:
            self._seen = self._figures()
        return self._seen

    def packed(self, app: App, count: int) -> tuple[int, ...]:
        """Return containers by node with `count` of them packed onto the roomiest nodes of the empty cluster."""
        self._read_nodes()
        left, packed = count, []
        each = sorted(
            ((self._on(capacity, labels, app), size) for capacity, labels, size in self._shapes), reverse=True
        )
        for fits, size in each:
            for _ in range(size):
                if left <= 0 or fits <= 0:
                    break
                packed.append(min(fits, left))
                left -= packed[-1]
        return tuple(packed)

    def dominant_unit(self, app: App) -> float:
        """Return δ_i, the dominant share of one container (DRF, NSDI 2011, §4.1); infinite if a resource is missing."""
        self._read_nodes()
        need = {kind: amount for kind, amount in app.demand.items() if amount > 0}
        if any(kind not in self._totals for kind in need):
            return float("inf")
        return max((amount / self._totals[kind] for kind, amount in need.items()), default=0.0)

    def _figures(self) -> tuple[float, float]:
        size = len(self._apps)
        if not size or not self._totals:
            return 0.0, 0.0
        fractions, counts, gang = self._fractions[:size], self._count[:size], self._gang[:size]
        possible = np.isfinite(fractions).all(axis=1) & (self._cap[:size] > 0)
        used = np.where(possible[:, None], fractions, 0.0) * (counts / gang)[:, None]
        unit = np.where(possible, shares.dominant_units(fractions), 0.0)
        fair = shares.theoretical_shares(fractions, self._weight[:size], np.where(possible, self._cap[:size], 0))
        whole = np.rint(np.divide(fair, unit, out=np.zeros(size), where=unit > 0)) * unit
        fair = np.where(np.abs(whole - fair) < LOSS_TOLERANCE, whole, fair)  # The rounding of ŝ_i is not a loss.
        loss = np.abs(counts / gang * unit - fair)[possible]
        return float(used.sum()), float(loss.sum())

    def _describe(self, row: int, app: App) -> None:
        gang = max(app.spec.gang, 1)
        demand = np.array([[app.demand.get(kind, 0) * gang for kind in self._totals]], np.int64)
        fractions = shares.demand_fractions(demand, np.array(list(self._totals.values()), np.int64))[0]
        if any(amount > 0 and kind not in self._totals for kind, amount in app.demand.items()):
            fractions[:] = np.inf
        fits = min(self._fits(app, gang), app.n_max // gang)
        self._fractions[row] = fractions
        self._gang[row] = gang
        self._weight[row] = app.weight
        self._cap[row] = fits if fits * gang >= app.n_min else 0

    def _fits(self, app: App, gang: int) -> int:
        """Return how many gangs the empty cluster holds."""
        key = (gang, app.spec.require, *sorted(app.demand.items()))
        if key not in self._fits_of:
            self._fits_of[key] = sum(
                self._on(capacity, labels, app) // gang * size for capacity, labels, size in self._shapes
            )
        return self._fits_of[key]

    def _on(self, capacity: dict[str, int], labels: dict[str, str], app: App) -> int:
        """Return the app's containers that one such node holds."""
        if app.spec.require and not satisfies(app.spec.require, labels):
            return 0
        return min((capacity.get(kind, 0) // need for kind, need in app.demand.items() if need > 0), default=app.n_max)

    def _grow(self) -> None:
        size = 2 * len(self._count)
        self._count, self._gang, self._cap = (
            np.resize(column, size) for column in (self._count, self._gang, self._cap)
        )
        self._weight = np.resize(self._weight, size)
        self._fractions = np.resize(self._fractions, (size, len(self._totals)))
