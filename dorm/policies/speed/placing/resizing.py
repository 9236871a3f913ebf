"""From the counts that the program wants to partitions on nodes, and the remaining room to the apps that gain most.

Apps are resized one after the other, each from a valid placement to a valid one, so there is an answer at any time: first
those that shrink, then those that start or change in any case, then those that grow, by what they gain for each part of the
cluster.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import integer
from dorm.policies.speed.placing.partitions import Partitions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.integer import Flags, Instance, Ints, Rows
    from dorm.policies.scoring import Terms
    from dorm.policies.speed.worth import Worth

IN_PLACE_S = 5.0
"""An app that pauses for less than this is resized live, so its containers stay where they are; any other app restarts all of
them, and may as well move to fewer nodes."""
SMALLEST = 1e-9
"""Smaller relative gains count as none."""


class Resizing:
    """Resizes the apps of one draft, within what θ2 still allows."""

    def __init__(self, instance: Instance, rows: Rows, worth: Worth, terms: Terms, closed: Flags | None) -> None:
        self.instance = instance
        self.worth = worth
        self.terms = terms
        self.parts = Partitions(instance, rows, closed)
        self.kept = instance.kept
        self.changed = integer.changed(instance, rows) & self.kept
        self.left = terms.change_budget - worth.lately - float(worth.disturbs[self.changed].sum())
        """Rest of θ2's budget, in full restarts."""
        self.loss = integer.loss(instance, self.parts.n, terms.shares)
        self.free = instance.free_to_move & (self.parts.n > 0)
        """The apps that may be resized."""
        self._unit = np.where(np.isfinite(instance.unit) & (instance.unit > 0), instance.unit, 1.0)

    def run(self, low: Ints, high: Ints) -> None:
        """Bring the apps to their counts as far as nodes and θ2 allow, and fill the remaining room."""
        self.shrink(low, high)
        self.grow(high)
        self.fill()

    def shrink(self, low: Ints, high: Ints) -> None:
        n = self.parts.n
        target = np.where((low <= n) & (n <= high), n, np.where(high < n, high, low))
        for app in np.flatnonzero(self.free & (target < n)).tolist():
            self._resize(app, int(target[app]))

    def grow(self, high: Ints) -> None:
        """Bring the apps up to these counts."""
        instance, free = self.instance, self.free
        grow = np.flatnonzero(free & (high > self.parts.n)).tolist()
        gains = {app: self._gain(app, int(high[app])) for app in grow}
        size = np.round((instance.demand / np.maximum(instance.capacity.max(axis=0, initial=1), 1)).max(axis=1), 9)
        for app in sorted(grow, key=lambda i: (self._fresh(i), -gains[i] if self._fresh(i) else -size[i], i)):
            self._resize(app, self._within_loss(app, int(high[app])))

    def _fresh(self, app: int) -> bool:
        """Return whether a change of the app would be a further one for θ2."""
        return bool(self.kept[app] and not self.changed[app])

    def _allowed(self, app: int) -> bool:
        """Return whether θ2 and its rest admit a change of the app."""
        if not self._fresh(app):
            return True
        return not self.worth.rests[app] and self.left >= float(self.worth.disturbs[app]) - 1e-9

    def worth_of(self, app: int, units: int) -> float:
        """Return the worth of the app with this many units; for its present number, that of its present partition."""
        return self.worth.one(app, units)

    def _gain(self, app: int, to: int) -> float:
        """Return the gain of a larger count relative to the part of the cluster that it takes."""
        n = int(self.parts.n[app])
        more = self.worth_of(app, to) - self.worth_of(app, n)
        return round(more / (float(self._unit[app]) * max(to - n, 1)), 12)

    def _after(self, app: int, to: int) -> float:
        """Return the fairness loss with this count of the app."""
        n, unit, share = int(self.parts.n[app]), float(self._unit[app]), float(self.terms.shares[app])
        if not np.isfinite(self.instance.unit[app]):
            return self.loss
        return self.loss + abs(to * unit - share) - abs(n * unit - share)

    def _within_loss(self, app: int, to: int) -> int:
        """Return the largest count up to `to` with which the fairness loss stays within θ1, or does not grow."""
        n, unit, share = int(self.parts.n[app]), float(self._unit[app]), float(self.terms.shares[app])
        if not np.isfinite(self.instance.unit[app]):
            return to
        spare = max(self.terms.loss_budget - self.loss, 0.0) + abs(n * unit - share)
        return max(n, min(to, int((share + spare) / unit + 1e-9)))

    def _resize(self, app: int, to: int) -> bool:
        """Bring an app to a count, or as far as there is room; return whether anything changed."""
        if not self._allowed(app) or to == self.parts.n[app]:
            return False
        n, worth, was = int(self.parts.n[app]), self.worth, self.worth_of(app, int(self.parts.n[app]))
        before, loss = dict(self.parts.rows[app]), self.loss
        if worth.pause[app] < IN_PLACE_S and before:
            if to < n:
                self.parts.take(app, n - to)
            else:
                self.parts.put(app, to - n)
        else:
            self.parts.clear(app)
            if self.parts.put(app, to) < min(to, n):
                self.parts.restore(app, before)
                self.parts.take(app, max(n - to, 0))
        got = int(self.parts.n[app])
        if got == n or (to > n and self.worth_of(app, got) <= was * (1 + SMALLEST)):
            self.parts.restore(app, before)
            return False
        self.loss = integer.loss(self.instance, self.parts.n, self.terms.shares) if np.isfinite(loss) else loss
        if self._fresh(app):
            self.left -= float(worth.disturbs[app])
            self.changed[app] = True
        return True

    def _pays(self, before: Mapping[int, dict[int, int]]) -> bool:
        """Return whether the changes are worth more than before, within θ2 and θ1; if so, keep them."""
        rows, worth = self.parts.rows, self.worth
        changed = [each for each, row in before.items() if rows[each] != row]
        fresh = [each for each in changed if self._fresh(each) and rows[each] != self.instance.rows[each]]
        cost = math.fsum(float(worth.disturbs[each]) for each in fresh)
        was = math.fsum(worth.placed(each, before[each]) for each in changed)
        now = math.fsum(worth.placed(each, rows[each]) for each in changed)
        resized = any(sum(before[each].values()) != self.parts.n[each] for each in changed)
        loss = integer.loss(self.instance, self.parts.n, self.terms.shares) if resized else self.loss
        fair = loss <= max(self.loss, self.terms.loss_budget) + integer.LOSS_TOLERANCE
        if not changed or now <= was * (1 + SMALLEST) or cost > self.left + 1e-9 or not fair:
            return False
        self.loss, self.left = loss, self.left - cost
        self.changed[fresh] = True
        return True

    def fill(self) -> None:
        """Give the remaining room to the apps that gain most, within θ1: unlike the program, this step knows the nodes."""
        apps = np.flatnonzero(self.free).tolist()
        heap = [(-gain, app, to) for app in apps for gain, to in [self.growth(app)] if gain > 0]
        heapq.heapify(heap)
        while heap:
            negative, app, to = heapq.heappop(heap)
            gain, now = self.growth(app)
            if gain <= 0:
                continue
            if (gain, now) != (-negative, to):
                heapq.heappush(heap, (-gain, app, now))
                continue
            if self._resize(app, to):
                gain, now = self.growth(app)
                if gain > 0:
                    heapq.heappush(heap, (-gain, app, now))

    def growth(self, app: int) -> tuple[float, int]:
        """Return the best gain of one more unit, or of all for which there is room, and the count; 0 if nothing gains."""
        n, most = int(self.parts.n[app]), int(self.instance.fits_empty[app])
        if n >= most or not self.instance.unit[app] > 0 or not self._allowed(app) or not self.parts.some_fit(app):
            return 0.0, n
        room = int(min(self.parts.fits(app)[1].sum(), most - n))
        best, count = 0.0, n
        for to in sorted({n + 1, n + room} if room > 0 else set()):
            after = self._after(app, to)
            if after > max(self.loss, self.terms.loss_budget) + integer.LOSS_TOLERANCE:
                continue
            gain = self._gain(app, to)
            if gain > max(best, SMALLEST * self.worth_of(app, n)):
                best, count = gain, to
        return best, count
