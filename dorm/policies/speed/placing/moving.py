"""Resizing on a cluster with several types of nodes: apps also move to the type that the program chose for them.

A move is tried as a whole: the app leaves its nodes and takes new ones, if need be in the room of apps that lose less
by going elsewhere, and each of these finds room for all its containers.  It counts only if the sum of their worths grows, with
the pause of each app that changes, and if θ2 allows all of them.  So a fast app and one for which types do not matter swap
places if that pays, and nothing changes if it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.policies.speed.placing.gathering import Gathering
from dorm.policies.speed.placing.resizing import IN_PLACE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dorm.policies.integer import Flags, Instance, Ints, Rows
    from dorm.policies.scoring import Terms
    from dorm.policies.speed.choosing import Chosen
    from dorm.policies.speed.types import Types
    from dorm.policies.speed.worth import Worth

MOST_GIVE_WAY = 8
"""Apps that one move may send elsewhere."""
MOST_MOVES = 400
"""Apps that all moves of one decision may try to send elsewhere: the first moves are those that gain most."""


class Moving(Gathering):
    """Resizes the apps of one draft, and moves those to which types matter, or makes room for them on their type."""

    def __init__(
        self, instance: Instance, rows: Rows, worth: Worth, terms: Terms, closed: Flags | None, types: Types
    ) -> None:
        super().__init__(instance, rows, worth, terms, closed)
        self.types = types
        self.pace: dict[int, str] = {}
        """Slowest type that an app to which types matter may be on, by app."""
        self._on: Ints = types.units([])
        """Units of each app by type."""
        self._moves = 0
        for app in np.flatnonzero(self.free).tolist():
            if app in worth.paces:
                self._bind(app, types.pace(app, self.parts.rows[app]), int(self.parts.n[app]))

    def follow(self, chosen: Chosen) -> None:
        """Bring the apps to their types and counts as far as nodes and θ2 allow, and fill the remaining room."""
        moving, low, high = [], chosen.low.copy(), chosen.high.copy()
        for app, pace in sorted(chosen.pace.items()):
            if not self.free[app]:
                continue
            n = int(self.parts.n[app])
            to = int(high[app]) if high[app] < n else self._within_loss(app, int(high[app]))
            better = self.worth.on(app, to, pace) - self.worth.placed(app, self.parts.rows[app])
            leaves = self._leaves(app, to, pace)
            if not leaves:
                self._bind(app, pace, to)
            if better > 0 and (leaves or to > n):
                moving.append((-round(better / float(self._unit[app]), 12), app, to, pace))
                low[app] = high[app] = n  # Until it has moved, it keeps its containers.
        self.shrink(low, high)
        self._on = self.types.units(self.parts.rows)
        for _, app, to, pace in sorted(moving):
            for count in dict.fromkeys((to, int(self.parts.n[app]))):
                if self._move(app, count, pace, chosen):
                    break
        self.gather(chosen.high)
        self.grow(chosen.high)
        self.gather(chosen.high)
        self.fill()

    def fill(self) -> None:
        """Give the remaining room to the apps that gain most: more containers of the same kind, at their present pace."""
        for app in self.pace:
            row = self.parts.rows[app]
            self._bind(app, self.types.pace(app, row), int(self.parts.n[app]))
        super().fill()

    def worth_of(self, app: int, units: int) -> float:
        if units == self.parts.n[app]:
            return self.worth.placed(app, self.parts.rows[app])
        return super().worth_of(app, units)

    def _pace(self, app: int) -> str | None:
        return self.pace.get(app)

    def _near(self, app: int, units: int) -> float:
        return self.worth.on(app, units, self.pace[app]) if app in self.pace else self.worth.one(app, units)

    def _bind(self, app: int, pace: str, units: int) -> None:
        """Let the app use the nodes on which it is as fast as on this type, and that type first: faster ones are left to
        others."""
        self.pace[app] = pace
        first, bits = self.types.bits([pace]), self.types.allowed(app, units, pace)
        self.parts.within[app] = tuple(self.types.nodes(each) for each in (bits, first, bits & ~first) if each)

    def _leaves(self, app: int, units: int, pace: str) -> bool:
        """Return whether the app has to leave a node to be on these types."""
        there = self.types.bits(self.types.on(self.parts.rows[app]))
        return bool(there & ~self.types.allowed(app, units, pace))

    def _move(self, app: int, to: int, pace: str, chosen: Chosen) -> bool:
        """Move an app to a type, and others out of its way; return whether that pays."""
        if not self._allowed(app):
            return False
        before = {app: dict(self.parts.rows[app])}
        bound = {app: (self.pace[app], self.parts.within[app])}
        in_place = self.worth.pause[app] < IN_PLACE_S and to > self.parts.n[app] and not self._leaves(app, to, pace)
        self._bind(app, pace, to)
        if self._on_one(app, to) and self._gather(app, to):
            return True
        got = self._put(app, to, in_place=in_place)
        for other in self._in_the_way(app, chosen) if got < to and self._moves < MOST_MOVES else ():
            self._moves += 1
            before[other] = self.parts.clear(other)
            if other in self.pace:
                bound[other] = self.pace[other], self.parts.within[other]
            got = self._put(app, to, in_place=in_place)
            if got == to or len(before) > MOST_GIVE_WAY:
                break
        placed = [self._put_elsewhere(other, row, app) for other, row in before.items() if other != app]
        if got >= self.instance.n_min[app] and all(placed) and self._pays(before):
            moved = list(before)
            self._on[moved] = self.types.units([self.parts.rows[each] for each in moved])
            return True
        for each in before:
            self.parts.clear(each)
        for each, row in before.items():
            self.parts.restore(each, row)
        for each, (its_pace, within) in bound.items():
            self.pace[each], self.parts.within[each] = its_pace, within
        return False

    def _gather_on(self, app: int, to: int, node: int) -> bool:
        pace, within = dict(self.pace), dict(self.parts.within)
        done = super()._gather_on(app, to, node)
        if done:
            self._on = self.types.units(self.parts.rows)
        else:
            self.pace, self.parts.within = pace, within
        return done

    def _put_on_others(self, other: int, units: int, closed: Flags) -> bool:
        groups = self.parts.within.get(other, ())[1:]  # Its own types first.
        return self._put_within(other, units, (~closed, *(group & ~closed for group in groups), ~closed))

    def _put(self, app: int, to: int, *, in_place: bool) -> int:
        """Give an app this many units, or as many as there is room for, next to its present ones if it grows `in_place`;
        return how many it has."""
        if not in_place:
            self.parts.clear(app)
        self.parts.put(app, to - int(self.parts.n[app]))
        return int(self.parts.n[app])

    def _in_the_way(self, app: int, chosen: Chosen) -> Iterator[int]:
        """Return the apps that may go elsewhere for this one: first those that the program moves, then those that it costs
        least."""
        bits, worth = self.types.allowed(app, int(self.parts.n[app]) or 1, self.pace[app]), self.worth
        held = np.round(self._on[:, self.types.inside(bits)].sum(axis=1) * self._unit, 9)
        cost = np.where(self.instance.kept & ~self.changed, np.round(worth.disturbs, 9), 0.0)
        may = self.free & (held > 0) & (cost <= self.left + 1e-9) & (~worth.rests | self.changed)
        may[app] = False
        first = np.ones(len(may), np.bool_)
        first[sorted(chosen.moves)] = False
        others = np.flatnonzero(may)
        for other in others[np.lexsort((others, -held[others], cost[others], first[others]))].tolist():
            wanted, units = chosen.pace.get(other), int(self.parts.n[other])
            if wanted is None or self.types.allowed(other, units, wanted) & ~bits:
                yield other  # Any other should be here as well.

    def _put_elsewhere(self, other: int, row: Mapping[int, int], app: int) -> bool:
        """Place an app that gave way: where it was if that is free again, else on other nodes, with all that it had."""
        if self.parts.holds(other, row):
            self.parts.restore(other, dict(row))
            return True
        inside = self.parts.within[app][0]
        return self._put_within(other, sum(row.values()), (np.ones_like(inside), ~inside, inside))

    def _put_within(self, other: int, units: int, within: tuple[Flags, ...]) -> bool:
        """Place an app that gave way on these nodes (`Partitions.within`), whatever its type; return whether all units found
        room."""
        bound = self.parts.within.get(other)
        self.parts.within[other] = within
        done = self.parts.put(other, units) == units
        del self.parts.within[other]
        if bound is not None:
            self.parts.within[other] = bound
            if done:
                self._bind(other, self.types.pace(other, self.parts.rows[other]), int(self.parts.n[other]))
        return done
