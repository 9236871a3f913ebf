"""The greedy placer of `sia`: configurations on nodes (SOSP 2023, §3.4).

An app whose configuration stays keeps its nodes.  The others are placed by size, largest first.  An app that fits on a node
goes to one as a whole, the fullest that holds it; a larger app takes whole nodes and puts its rest on one.  If there is no
such place, apps that stayed on one node are moved out of the way, smallest first, if all of them find another.  If that does
not help either (here nodes of one type may differ, and have several kinds of resources), the app gets what fits on the nodes
with most room, if that is at least n_min.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from dorm.policies.baselines.packing import Packing

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Instance, Ints


NODES_TRIED = 16
"""Nodes that are tried for an app for which others have to move."""


class Placing:
    """Rows of the answer: `units` of each app on nodes of type `wanted`, with the types of all nodes in `type_of`."""

    def __init__(self, instance: Instance, type_of: Ints, wanted: Ints, units: Ints, stays: Flags) -> None:
        self._instance = instance
        self._type_of = type_of
        self._wanted = wanted
        self._units = units
        self._packing = Packing(instance, instance.pinned | stays)
        self._may_move = stays.copy()
        """Apps that stayed and were not moved yet: each is moved once at most."""

    @property
    def rows(self) -> list[dict[int, int]]:
        return self._packing.rows

    def place(self) -> None:
        waiting = [(-self._size(app), app) for app in np.flatnonzero(self._units).tolist() if not self.rows[app]]
        heapq.heapify(waiting)
        while waiting:
            _, app = heapq.heappop(waiting)
            if not self._put(app) and not self._put_with_moves(app):
                self._squeeze(app)

    def _size(self, app: int) -> float:
        unit = float(self._instance.unit[app])
        return round(float(self._units[app]) * (unit if np.isfinite(unit) else 0.0), 12)

    def _fits(self, app: int) -> Ints:
        """Return how many units each node takes now, on nodes of the app's type."""
        here = self._packing.fits(app, int(self._units[app]))
        return np.asarray(np.where(self._type_of == self._wanted[app], here, 0))

    def _put(self, app: int) -> bool:
        """Place the whole app by its configuration; return whether it was placed."""
        here, left = self._fits(app), int(self._units[app])
        most = int(np.where(self._type_of == self._wanted[app], self._instance.holds[app], 0).max(initial=0))
        row: dict[int, int] = {}
        if most <= 0:
            return False
        for node in np.flatnonzero(here >= most).tolist() if left > most else []:
            if left <= most:
                break
            row[node] = most
            left -= most
        rest = [node for node in np.flatnonzero(here >= left).tolist() if node not in row]
        if left > most or (left and not rest):
            return False
        if left:
            row[min(rest, key=lambda node: (int(here[node]), node))] = left
        return self._packing.put_back(app, row)

    def _put_with_moves(self, app: int) -> bool:
        """Place the app on a node of its type from which others move away, that with most room first; return whether all of
        them found a place."""
        here = self._fits(app)
        needs = min(int(self._units[app]), int(self._instance.holds[app].max(initial=0)))
        nodes = [node for node in np.flatnonzero(self._type_of == self._wanted[app]).tolist() if here[node] < needs]
        alone: dict[int, list[int]] = {}
        for other in np.flatnonzero(self._may_move).tolist():
            if len(self.rows[other]) == 1:
                alone.setdefault(next(iter(self.rows[other])), []).append(other)
        for node in sorted(nodes, key=lambda node: (-int(here[node]), node))[:NODES_TRIED]:
            taken: list[tuple[int, dict[int, int]]] = []
            for other in sorted(alone.get(node, []), key=lambda other: (self._size(other), other)):
                taken.append((other, self._packing.take_back(other)))
                if self._fits(app)[node] >= needs:
                    break
            if self._fits(app)[node] >= needs and self._put(app):
                moved = [other for other, _ in reversed(taken)]
                if all(self._put(other) for other in moved):
                    self._may_move[moved] = False
                    return True
                self._packing.take_back(app)
            for other, row in taken:
                self._packing.take_back(other)
                self._packing.put_back(other, row)
        return False

    def _squeeze(self, app: int) -> None:
        """Give it what fits, in its old place or on the nodes with most room."""
        instance = self._instance
        before = instance.rows[app]
        if instance.kept[app] and self._packing.put_back(app, before):
            return
        if self._packing.put(app, int(self._units[app])) < instance.n_min[app]:
            self._packing.take_back(app)
