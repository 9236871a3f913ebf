"""Partitions under construction, each on few nodes: containers of one app that share a node talk faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import integer
from dorm.policies.dorm.placing import DEVICES, DIRECTIONS, RARE

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Instance, Ints, Rows


MOST_ROWS = 100
"""How many rows are compared with all others."""
FINE_TURNS = 1_000
"""An app that wants to be spread gets single units for so many turns: counts may be extreme."""


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
        """For apps that do not use all nodes: those that they use, then groups of these, which are filled one after the
        other."""
        having = (instance.capacity > 0).mean(axis=0) if len(instance.nodes) else np.ones(len(instance.kinds))
        self._rare = np.flatnonzero(having < RARE)
        self._largest: Ints | None = None
        """The free room of nodes that no other node exceeds in every kind, and maybe of some that were such."""
        self._scale = np.maximum(instance.capacity.max(axis=0, initial=1), 1).astype(np.float64)
        self._scaled = self.free / self._scale
        self._lengths = np.sqrt((self._scaled * self._scaled).sum(axis=1))

    def fits(self, app: int) -> Ints:
        """Return how many units of the app the free room of each node takes, not bounded by its n_max."""
        instance, demand = self.instance, self.instance.demand[app]
        here = np.full(len(self.free), 0 if instance.lacking[app] else int(instance.n_max[app]), np.int64)
        for k in np.flatnonzero(demand > 0).tolist():
            here = np.minimum(here, self.free[:, k] // demand[k])
        usable = instance.eligible[instance.requirement[app]]
        if app in self.within:
            usable = usable & self.within[app][0]
        return np.where(usable if self.closed is None else usable & ~self.closed, np.maximum(here, 0), 0)

    def some_fit(self, app: int) -> bool:
        """Return False only if no node takes another unit: a quick test for clusters that are full."""
        if self._largest is None:
            self._largest = _undominated(self.free)
        return bool((self._largest >= self.instance.demand[app]).all(axis=1).any())

    def change(self, app: int, node: int, count: int) -> None:
        """Put units on a node, or take them off where negative."""
        row = self.rows[app]
        left = row.get(node, 0) + count
        if left:
            row[node] = left
        else:
            row.pop(node, None)
        self.n[app] += count
        self.free[node] -= count * self.instance.demand[app]
        scaled = self.free[node] / self._scale
        self._scaled[node], self._lengths[node] = scaled, np.sqrt((scaled * scaled).sum())
        if count < 0:
            self._largest = None

    def clear(self, app: int) -> dict[int, int]:
        """Take all its units off; return its row."""
        row = dict(self.rows[app])
        for node, count in row.items():
            self.change(app, node, -count)
        return row

    def restore(self, app: int, row: dict[int, int]) -> None:
        """Give it exactly this row, which must have room."""
        self.clear(app)
        for node, count in row.items():
            self.change(app, node, count)

    def put(self, app: int, count: int) -> int:
        """Place up to `count` more units; return how many found room.

        Nodes whose free room points in the direction of the demand come first, as for `dorm`.  Among those that point alike,
        the emptiest are filled, and the rest goes to the tightest that holds it.  An app that wants to be spread gets one
        unit of each node at a time."""
        if count <= 0 or not len(self.free):
            return 0
        here, away = self.fits(app), self._points_away(app)
        done = 0
        for group in self.within.get(app, ())[1:]:
            done += self._put(app, count - done, np.where(group, here, 0), away)
            here[group] = 0
        return done if app in self.within else self._put(app, count, here, away)

    def _put(self, app: int, count: int, here: Ints, away: Ints) -> int:
        """Place up to `count` units where there is room `here`."""
        if self.instance.apps[app].placement == "spread":
            return self._spread(app, count, here, away)
        left = count
        while left:
            usable = np.flatnonzero(here > 0)
            if not len(usable):
                break
            first = usable[away[usable] == away[usable].min()]
            emptiest = int(first[int(np.argmax(here[first]))])
            if here[emptiest] < left:
                self.change(app, emptiest, int(here[emptiest]))
                left -= int(here[emptiest])
                here[emptiest] = 0
                continue
            holds = usable[here[usable] >= left]
            first = holds[away[holds] == away[holds].min()]
            self.change(app, int(first[int(np.argmin(here[first]))]), left)
            left = 0
        return count - left

    def take(self, app: int, count: int) -> None:
        """Take units off where it has fewest on a node, so that few nodes are left."""
        for node, here in sorted(self.rows[app].items(), key=lambda entry: (entry[1], entry[0])):
            off = min(here, count)
            if off:
                self.change(app, node, -off)
            count -= off

    def _spread(self, app: int, count: int, here: Ints, away: Ints) -> int:
        done, turn = 0, 0
        while done < count:
            own = np.zeros(len(here), np.int64)
            own[list(self.rows[app])] = list(self.rows[app].values())
            free = np.flatnonzero(here > 0)
            if not len(free):
                break
            for node in free[np.lexsort((free, -here[free], away[free], own[free]))].tolist():
                if done == count:
                    break
                each = 1 if turn < FINE_TURNS else min(int(here[node]), count - done)
                self.change(app, node, each)
                here[node] -= each
                done += each
            turn += 1
        return done

    def _points_away(self, app: int) -> Ints:
        """Return how far the free room of each node points away from the demand (`placing.Draft` explains why), in steps;
        devices that the app would leave idle count as well."""
        free, need = self._scaled, self.instance.demand[app] / self._scale
        lengths = self._lengths * float(np.sqrt((need * need).sum()))
        cosine = np.divide((free * need).sum(axis=1), lengths, out=np.zeros(len(free)), where=lengths > 0)
        if len(self._rare):
            cosine = cosine - DEVICES * (free[:, self._rare].sum(axis=1) - float(need[self._rare].sum()))
        return np.asarray(-np.round(cosine * DIRECTIONS), np.int64)


def _undominated(free: Ints) -> Ints:
    """Return the rows that no other row exceeds in every column; where there are very many, some others with them."""
    left = np.unique(free, axis=0)
    found: list[Ints] = []
    while len(left) and len(found) < MOST_ROWS:
        top = left[int(np.argmax(left.sum(axis=1)))]
        found.append(top)
        left = left[(left > top).any(axis=1)]
    return np.vstack([*found, left]) if found else left
