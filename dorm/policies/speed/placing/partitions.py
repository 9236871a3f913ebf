"""Partitions under construction, each on few nodes: containers of one app on the same node communicate faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import integer
from dorm.policies.dorm.placing import DEVICES, DIRECTIONS, RARE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.integer import Flags, Instance, Ints, Rows


MOST_ROWS = 100
"""Number of rows that are compared with all others."""
MOST_FREED = 200
"""Nodes whose room has grown that are looked at one by one; with more of them the largest rooms are found again."""
FINE_TURNS = 1_000
"""An app that wants to be spread gets single units for this many turns: counts may be extreme."""


class Partitions:
    """Rows of the answer, and the free room of each node."""

    def __init__(self, instance: Instance, rows: Rows, closed: Flags | None) -> None:
        """`closed` nodes get nothing further."""
        self.instance = instance
        self.rows = [dict(row) for row in rows]
        self.n = integer.counts_of(rows)
        self.free = integer.free_room(instance, rows)
        self.closed = closed
        self.within: dict[int, tuple[Flags, ...]] = {}
        """Nodes of apps that do not use all: those that they use, then groups of these, which are filled one after the
        other."""
        having = (instance.capacity > 0).mean(axis=0) if len(instance.nodes) else np.ones(len(instance.kinds))
        self._rare = np.flatnonzero(having < RARE)
        self._largest: Ints | None = None
        """The free room of nodes that no other node exceeds in every kind, and maybe of some that were such."""
        self._freed: dict[int, None] = {}
        """Nodes that may have more free room than when these were found."""
        self._scale = np.maximum(instance.capacity.max(axis=0, initial=1), 1).astype(np.float64)
        self._scaled = self.free / self._scale
        self._lengths = np.sqrt((self._scaled * self._scaled).sum(axis=1))
        self._stale: dict[int, None] = {}
        """Nodes whose free room has changed since these two were computed."""

    def fits(self, app: int) -> tuple[Ints, Ints]:
        """Return the nodes whose free room takes units of the app, ascending, and how many each takes, at most n_max."""
        instance, demand = self.instance, self.instance.demand[app]
        if instance.lacking[app] or instance.n_max[app] <= 0:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        usable = instance.eligible[instance.requirement[app]]
        if app in self.within:
            usable = usable & self.within[app][0]
        if self.closed is not None:
            usable = usable & ~self.closed
        kinds = np.flatnonzero(demand > 0).tolist()
        for k in kinds:
            usable = usable & (self.free[:, k] >= demand[k])
        nodes = np.flatnonzero(usable)  # On a full cluster few nodes take any, and divisions are slow.
        here = np.full(len(nodes), int(instance.n_max[app]), np.int64)
        for k in kinds:
            here = np.minimum(here, self.free[nodes, k] // demand[k])
        return nodes, here

    def some_fit(self, app: int) -> bool:
        """Return False only if no node takes another unit: a quick test for clusters that are full."""
        if self._largest is None or len(self._freed) > MOST_FREED:
            self._largest = _undominated(self.free)
            self._freed.clear()
        demand = self.instance.demand[app]
        if (self._largest >= demand).all(axis=1).any():
            return True
        return bool(self._freed) and bool((self.free[list(self._freed)] >= demand).all(axis=1).any())

    def change(self, app: int, node: int, count: int) -> None:
        """Put units on a node, or take them off if negative."""
        row = self.rows[app]
        left = row.get(node, 0) + count
        if left:
            row[node] = left
        else:
            row.pop(node, None)
        self.n[app] += count
        self.free[node] -= count * self.instance.demand[app]
        self._stale[node] = None
        if count < 0:
            self._freed[node] = None

    def clear(self, app: int) -> dict[int, int]:
        """Take all its units off; return its row."""
        row, self.rows[app] = self.rows[app], {}
        self._give_back(app, row)
        return row

    def restore(self, app: int, row: dict[int, int]) -> None:
        """Give it exactly this row, which must have room."""
        self.clear(app)
        self.rows[app] = dict(row)
        self._give_back(app, row, -1)

    def holds(self, app: int, row: Mapping[int, int]) -> bool:
        """Return whether there is room for exactly this row."""
        nodes, counts = np.array(list(row), np.int64), np.array(list(row.values()), np.int64)
        return bool((self.free[nodes] >= counts[:, None] * self.instance.demand[app]).all())

    def _give_back(self, app: int, row: Mapping[int, int], sign: int = 1) -> None:
        """Add to the free room of all its nodes what a row takes there, or take it if `sign` is -1."""
        if not row:
            return
        nodes, counts = np.array(list(row), np.int64), sign * np.array(list(row.values()), np.int64)
        self.n[app] -= int(counts.sum())
        self.free[nodes] += counts[:, None] * self.instance.demand[app]
        self._stale.update(dict.fromkeys(row))
        if sign > 0:
            self._freed.update(dict.fromkeys(row))

    def put(self, app: int, count: int) -> int:
        """Place up to `count` more units; return how many found room.

        Nodes whose free room points in the direction of the demand come first, as for `dorm`.  Among those in the same
        direction, the emptiest are filled, and the rest goes to the tightest that holds it.  An app that wants to be spread
        gets one unit of each node at a time."""
        if count <= 0 or not len(self.free):
            return 0
        nodes, here = self.fits(app)
        away = self._points_away(app, nodes)
        if app not in self.within:
            return self._put(app, count, nodes, here, away)
        done = 0
        for group in self.within[app][1:]:
            inside = group[nodes]
            done += self._put(app, count - done, nodes[inside], here[inside], away[inside])
            nodes, here, away = nodes[~inside], here[~inside], away[~inside]
        return done

    def _put(self, app: int, count: int, nodes: Ints, here: Ints, away: Ints) -> int:
        """Place up to `count` units on nodes; each takes as many as `here` says."""
        if self.instance.apps[app].placement == "spread":
            return self._spread(app, count, nodes, here, away)
        left = count
        order = np.lexsort((-here, away))
        for place, at in enumerate(order.tolist()):
            if left <= 0:
                break
            if here[at] < left:
                self.change(app, int(nodes[at]), int(here[at]))
                left -= int(here[at])
                continue
            rest = np.sort(order[place:])
            holds = rest[(away[rest] == away[at]) & (here[rest] >= left)]
            self.change(app, int(nodes[holds[int(np.argmin(here[holds]))]]), left)
            left = 0
        return count - left

    def take(self, app: int, count: int) -> None:
        """Take units off where it has fewest on a node, so that few nodes are left."""
        for node, here in sorted(self.rows[app].items(), key=lambda entry: (entry[1], entry[0])):
            off = min(here, count)
            if off:
                self.change(app, node, -off)
            count -= off

    def _spread(self, app: int, count: int, nodes: Ints, here: Ints, away: Ints) -> int:
        done, turn, here = 0, 0, here.copy()
        while done < count:
            own = np.zeros(len(self.free), np.int64)
            own[list(self.rows[app])] = list(self.rows[app].values())
            free = np.flatnonzero(here > 0)
            if not len(free):
                break
            for at in free[np.lexsort((free, -here[free], away[free], own[nodes[free]]))].tolist():
                if done == count:
                    break
                each = 1 if turn < FINE_TURNS else min(int(here[at]), count - done)
                self.change(app, int(nodes[at]), each)
                here[at] -= each
                done += each
            turn += 1
        return done

    def _points_away(self, app: int, nodes: Ints) -> Ints:
        """Return how far the free room of these nodes points away from the demand (`placing.Draft` explains why), in steps;
        devices that the app would leave idle count as well."""
        if self._stale:
            stale = np.array(list(self._stale), np.int64)
            scaled = self.free[stale] / self._scale
            self._scaled[stale], self._lengths[stale] = scaled, np.sqrt((scaled * scaled).sum(axis=1))
            self._stale.clear()
        free, need = self._scaled[nodes], self.instance.demand[app] / self._scale
        lengths = self._lengths[nodes] * float(np.sqrt((need * need).sum()))
        cosine = np.divide((free * need).sum(axis=1), lengths, out=np.zeros(len(free)), where=lengths > 0)
        if len(self._rare):
            cosine = cosine - DEVICES * (free[:, self._rare].sum(axis=1) - float(need[self._rare].sum()))
        return np.asarray(-np.round(cosine * DIRECTIONS), np.int64)


def _undominated(free: Ints) -> Ints:
    """Return the rows that no other row exceeds in every column; if there are very many, some others with them."""
    left = np.unique(free, axis=0)
    kept: list[Ints] = []
    while len(left) and len(kept) < MOST_ROWS:
        top = left[int(np.argmax(left.sum(axis=1)))]
        kept.append(top)
        left = left[(left > top).any(axis=1)]
    return np.vstack([*kept, left]) if kept else left
