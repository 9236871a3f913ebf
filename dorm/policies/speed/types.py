"""The types of nodes of one problem: for which apps they matter, and the options of each of these apps.

A choice of such an app is a number of units and the slowest type that it may be on.  It then may be on all types that are
about as fast for it, and on any faster type as well if they do not hold as many units, or if θ1 or a floor can't be met
otherwise (`mixing`).  Such a mixture counts less than its speed: it works at the pace of its slowest node, so faster ones are
wasted on it, and an app that can use them has to wait until it moves.

Sets of types are bits of a whole number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies import integer
from dorm.policies.speed.by_type import typed_of
from dorm.policies.speed.curves import paces

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dorm.policies.integer import Flags, Floats, Instance, Ints, Rows
    from dorm.policies.problem import NodeRoom
    from dorm.policies.speed.curves import Paces

ALIKE_PACE = 1.1
"""Types that are at most this many times as fast for an app as another are about as fast."""
MIXED = 0.9
"""Worth of a partition on types that are not alike, in worths of one that is as fast on types that are."""
MOST_SETS = 64
"""Sets of types whose room the program includes, in addition to that of the whole cluster."""
LARGEST_WORD = 63
"""Fewer types than this are bits of a machine word, which are much faster."""


def names_of(nodes: Iterable[NodeRoom]) -> tuple[str, ...]:
    """Return the types of the nodes that are not drained, sorted."""
    return tuple(sorted({node.type for node in nodes if not node.drained}))


class Types:
    """The types of one problem."""

    def __init__(self, instance: Instance, names: tuple[str, ...]) -> None:
        self.instance = instance
        self.names = names
        place = {name: number for number, name in enumerate(names)}
        self.of: Ints = np.array([place[node.type] for node in instance.node_rooms], np.int64)
        """The type of each node."""
        self._of: list[int] = self.of.tolist()
        self.place = place
        self._nodes: dict[int, Flags] = {}
        self._usable: dict[tuple[bytes, int], Ints] = {}
        self.mixing = False
        """Whether apps may be on types that are not alike, whatever their count."""
        self.paces: dict[int, Paces] = {}
        """Paces of the typed apps, by row."""
        for i, app in enumerate(instance.apps):
            if typed_of(app, names) is not None:
                holds = self._holds(i)
                curves = paces(app, names, [name for name, held in zip(names, holds.tolist(), strict=True) if held])
                if curves is not None:
                    self.paces[i] = curves

    def _holds(self, app: int) -> Ints:
        """Return how many units each type holds while it is empty, at most n_max."""
        instance = self.instance
        key = (instance.demand[app].tobytes(), int(instance.requirement[app]))
        if key not in self._usable:
            demand, most = instance.demand[app], np.full(len(instance.nodes), 2**31, np.int64)
            for k in np.flatnonzero(demand > 0).tolist():
                most = np.minimum(most, instance.capacity[:, k] // demand[k])
            most[~instance.eligible[instance.requirement[app]]] = 0
            self._usable[key] = np.bincount(self.of, weights=most, minlength=len(self.names)).astype(np.int64)
        held = self._usable[key]
        return np.zeros_like(held) if instance.lacking[app] else np.minimum(held, int(instance.n_max[app]))

    def bits(self, types: Iterable[str]) -> int:
        return sum(1 << self.place[name] for name in types)

    def on(self, row: Mapping[int, int]) -> list[str]:
        """Return the types of the nodes of a row, sorted."""
        return [self.names[t] for t in sorted({self._of[node] for node in row})]

    def pace(self, app: int, row: Mapping[int, int]) -> str:
        """Return the slowest type that a typed app is on with this row."""
        return self.paces[app].slowest(sum(row.values()), self.on(row))

    def allowed(self, app: int, units: int, pace: str) -> int:
        """Return the types on which a typed app may be with this many units at this pace, as bits."""
        curves = self.paces[app]
        alike = self.bits(curves.as_fast(units, pace, ALIKE_PACE))
        if not self.mixing and int(self._holds(app)[self.inside(alike)].sum()) >= units:
            return alike
        return self.bits(curves.as_fast(units, pace))

    def nodes(self, bits: int) -> Flags:
        """Return the nodes of these types."""
        if bits not in self._nodes:
            self._nodes[bits] = self.inside(bits)[self.of]
        return self._nodes[bits]

    def inside(self, bits: int) -> Flags:
        """Return the types of a set."""
        return np.array([bits >> t & 1 for t in range(len(self.names))], np.bool_)

    def units(self, rows: Rows) -> Ints:
        """Return how many units each app has on nodes of each type."""
        total = np.zeros((len(rows), len(self.names)), np.int64)
        app, node, count = integer.entries(rows)
        np.add.at(total, (app, self.of[node]), count)
        return total

    def offers(self, app: int, counts: Ints) -> Offers:
        """Return what a typed app may have on each type, as the slowest that it is on."""
        held, paces_ = self._holds(app), self.paces[app]
        names = list(paces_.curves)
        speed = np.stack([paces_.curves[name].speed_up(counts) for name in names])
        place = np.array([self.place[name] for name in names])
        bit = np.array([1 << int(t) for t in place], np.int64 if len(self.names) < LARGEST_WORD else object)
        # Whether a partition at the pace of one type may be on another, by count.
        base, here = speed[:, None, :] * (1 - 1e-9), held[place][None, :, None]
        faster = speed[None, :, :] >= base
        alike = faster & (speed[None, :, :] <= base * ALIKE_PACE)
        mixed = (counts[None, :] > (here * alike).sum(axis=1)) | self.mixing
        inside = np.where(mixed[:, None, :], faster, alike)
        most = np.minimum((here * inside).sum(axis=1), int(self.instance.n_max[app]))
        bits = (bit[None, :, None] * inside).sum(axis=1)
        part = np.where(mixed & (faster & ~alike).any(axis=1), MIXED, 1.0)
        return Offers(names, speed, bits.tolist(), counts[None, :] <= most, part)


class Offers(NamedTuple):
    """What a typed app may have at the pace of each type: a row for each type, a column for each count."""

    names: list[str]
    speed: Floats
    bits: list[list[int]]
    """The types on which it may be."""
    fits: Flags
    """Whether these types hold this many while they are empty."""
    part: Floats
    """The part of its worth that counts: a mixture of types that are not alike wastes the faster ones."""


def types_of(instance: Instance) -> Types | None:
    """Return the types of a problem; None if they matter to no app."""
    names = names_of(instance.node_rooms)
    if len(names) < 2:
        return None
    types = Types(instance, names)
    return types if types.paces else None
