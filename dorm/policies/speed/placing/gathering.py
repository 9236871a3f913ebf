"""Resizing with apps that are slower across nodes: each is gathered on one node if that pays.

An app is gathered as a whole: it takes a node with enough room, if need be with the room of others that are resized live or
change anyhow, and each of these finds room for all its containers.  It counts only if the sum of their worths grows, with the
pause of each app that changes, and if θ2 allows all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.policies.speed.placing.resizing import IN_PLACE_S, Resizing

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Instance, Ints, Rows
    from dorm.policies.scoring import Terms
    from dorm.policies.speed.worth import Worth

MOST_NODES = 4
"""Nodes on which one app may try to be gathered."""
MOST_TRIES = 100
"""Nodes on which all apps of one decision may try it."""


class Gathering(Resizing):
    """Resizes the apps of one draft, and gathers those that are slower across nodes."""

    def __init__(self, instance: Instance, rows: Rows, worth: Worth, terms: Terms, closed: Flags | None) -> None:
        super().__init__(instance, rows, worth, terms, closed)
        self._tries = 0

    def run(self, low: Ints, high: Ints) -> None:
        self.shrink(low, high)
        self.gather(high)
        self.grow(high)
        self.gather(high)
        self.fill()

    def worth_of(self, app: int, units: int) -> float:
        if app in self.worth.across and units == self.parts.n[app]:
            return self.worth.placed(app, self.parts.rows[app])
        if self._on_one(app, units) and not self._finds_room(app, units):
            return self.worth.spread(app, units, self._pace(app))
        return self._near(app, units)

    def gather(self, high: Ints) -> None:
        """Bring each app that is slower across nodes to one node, with the count that it should have."""
        wanted = []
        for app in self.worth.across:
            n = int(self.parts.n[app])
            to = self._within_loss(app, max(n, int(high[app])))
            if self.free[app] and self._on_one(app, to) and (to > n or self.worth.apart(app, self.parts.rows[app])):
                wanted.append((-round(self._better(app, to) / (float(self._unit[app]) * to), 12), app, to))
        for _, app, to in sorted(wanted):
            for count in dict.fromkeys((to, int(self.parts.n[app]))):
                if self._gather(app, count):
                    break

    def _better(self, app: int, to: int) -> float:
        return self._near(app, to) - self.worth_of(app, int(self.parts.n[app]))

    def _pace(self, app: int) -> str | None:
        """Return the slowest type that the app may be on; None if types do not matter to it."""
        return None

    def _near(self, app: int, units: int) -> float:
        """Return the worth of the app with this many units on as few nodes as possible."""
        return self.worth.one(app, units)

    def _on_one(self, app: int, to: int) -> bool:
        """Return whether this many units are faster on one node."""
        return self.worth.on_one(app, to, self._pace(app))

    def _resize(self, app: int, to: int) -> bool:
        if to > self.parts.n[app] and self._on_one(app, to) and self._gather(app, to):
            return True
        return super()._resize(app, to)

    def _gather(self, app: int, to: int) -> bool:
        """Bring an app to one node with this many units, and others out of its way; return whether that pays."""
        there = to == self.parts.n[app] and not self.worth.apart(app, self.parts.rows[app])
        if there or self._tries >= MOST_TRIES or not self._allowed(app):
            return False
        for node in self._nodes(app, to):
            if self._tries >= MOST_TRIES:
                return False
            self._tries += 1
            if self._gather_on(app, to, node):
                return True
        return False

    def _finds_room(self, app: int, to: int) -> bool:
        """Return whether a node has room for this many units once the app has left its own."""
        usable, lacks, _ = self._room(app, to)
        return bool((usable & (lacks <= 0).all(axis=1)).any())

    def _room(self, app: int, to: int) -> tuple[Flags, Ints, Ints]:
        """Return the nodes that may hold this many units, what each lacks for them, and the units that it has there."""
        instance, parts = self.instance, self.parts
        need = instance.demand[app] * to
        usable = instance.eligible[instance.requirement[app]] & (instance.room >= need).all(axis=1)
        if parts.closed is not None:
            usable = usable & ~parts.closed
        if app in parts.within:
            usable = usable & parts.within[app][0]
        own = np.zeros(len(parts.free), np.int64)
        own[list(parts.rows[app])] = list(parts.rows[app].values())
        return usable, need - parts.free - own[:, None] * instance.demand[app], own

    def _nodes(self, app: int, to: int) -> list[int]:
        """Return the nodes that may hold the app, those first on which it disturbs least."""
        instance, parts = self.instance, self.parts
        usable, lacks, own = self._room(app, to)
        scale = np.maximum(instance.capacity.max(axis=0, initial=1), 1)
        lacking = np.round((np.maximum(lacks, 0) / scale).max(axis=1, initial=0.0), 9)
        tight = np.round((parts.free / scale).max(axis=1, initial=0.0), 9)
        nodes = np.flatnonzero(usable)
        return [
            int(node) for node in nodes[np.lexsort((nodes, tight[nodes], -own[nodes], lacking[nodes]))][:MOST_NODES]
        ]

    def _gather_on(self, app: int, to: int, node: int) -> bool:
        parts = self.parts
        before = {app: dict(parts.rows[app])}
        parts.clear(app)
        inside = np.zeros(len(parts.free), np.bool_)
        inside[node] = True
        moved: dict[int, int] = {}
        for other in self._neighbors(node, app):
            if self._holds(app, to, node):
                break
            before[other] = dict(parts.rows[other])
            moved[other] = parts.rows[other][node]
            parts.change(other, node, -moved[other])
        done = self._holds(app, to, node)
        if done:
            parts.change(app, node, to)
            for other, units in moved.items():
                done = self._put_on_others(other, units, inside) and done
        if done and self._pays(before):
            return True
        for each in before:
            parts.clear(each)
        for each, row in before.items():
            parts.restore(each, row)
        return False

    def _put_on_others(self, other: int, units: int, closed: Flags) -> bool:
        """Place units of an app that gave way on other nodes than these; return whether all of them found room."""
        self.parts.within[other] = (~closed, ~closed)
        done = self.parts.put(other, units) == units
        del self.parts.within[other]
        return done

    def _neighbors(self, node: int, app: int) -> list[int]:
        """Return the apps with units on the node that may go elsewhere, those first that cost least."""
        worth = self.worth
        neighbors = []
        for other, row in enumerate(self.parts.rows):
            if node not in row or other == app or not self.free[other]:
                continue
            cheap = not self._fresh(other) or worth.pause[other] < IN_PLACE_S
            if cheap and self._allowed(other):
                cost = float(worth.disturbs[other]) if self._fresh(other) else 0.0
                neighbors.append((round(cost, 9), -round(row[node] * float(self._unit[other]), 9), other))
        return [other for *_, other in sorted(neighbors)]

    def _holds(self, app: int, to: int, node: int) -> bool:
        """Return whether the node has room for this many units."""
        return bool((self.parts.free[node] >= self.instance.demand[app] * to).all())
