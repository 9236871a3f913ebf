"""The configurations that `sia` chooses from: for each app, a type of nodes and a number of containers there.

As in Sia (SOSP 2023, §3.3): on one node a power of two, or the whole node; beyond that whole nodes.  So configurations of
different apps fit next to each other without fragments.  An app may also keep exactly its containers, or get its n_min, which
may be another number.  If very many nodes could be used, only some of their numbers are offered (`EACH`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies.speed import throughput
from dorm_lab.policies.goodput.bounds import most_units

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Floats, Instance, Ints

EACH = 16
"""Up to this many nodes each number is a configuration; beyond, in steps of a quarter."""


class Configurations(NamedTuple):
    """Rows sorted by app, type and units."""

    app: Ints
    type: Ints
    units: Ints
    goodput: Floats
    """Steps per second, with the best batch size."""
    batch: Ints
    """Batch size in it; 0 for an app with a fixed one."""
    current: Flags
    """Whether the app has exactly that now."""


class Types(NamedTuple):
    """The cluster by types of nodes (`NodeRoom.type`), sorted by name."""

    names: tuple[str, ...]
    of: Ints
    """The type of each node."""


def types(instance: Instance) -> Types:
    names = sorted({room.type for room in instance.node_rooms})
    place = {name: number for number, name in enumerate(names)}
    return Types(tuple(names), np.array([place[room.type] for room in instance.node_rooms], np.int64))


def configurations(instance: Instance, types: Types) -> Configurations:
    """Return the configurations of each app that may move."""
    seen: dict[object, tuple[Ints, Floats, Ints]] = {}
    columns: list[list[tuple[int, ...]]] = []
    goodputs: list[Floats] = []
    holds = instance.holds  # While there are only pinned apps.
    for app in np.flatnonzero(instance.free_to_move).tolist():
        demand, gang = instance.apps[app], int(instance.gang[app])
        least, most = max(int(instance.n_min[app]), 1), most_units(instance, app)
        stands_on, has = _current(instance, types, app)
        for type_, name in enumerate(types.names):
            here = holds[app][types.of == type_]
            per_node, total = int(here.max(initial=0)), int(min(here.sum(), most))
            if total < least:
                continue
            now = has if stands_on == type_ else 0
            points = throughput.of_app(demand, name)
            key = (points, demand.batch, gang, per_node, total, least, now)
            if key not in seen:
                units = _units(per_node, least, total, now)
                given = throughput.goodputs(points, demand.batch, units * gang, per_node * gang)
                rows = (units > per_node).astype(np.int64), np.arange(len(units))
                seen[key] = units, given.values[rows], given.batches[rows]
            units, values, batches = seen[key]
            columns.append([(app, type_, n, size) for n, size in zip(units.tolist(), batches.tolist(), strict=True)])
            goodputs.append(values)
    table = np.array([row for rows in columns for row in rows], np.int64).reshape(-1, 4)
    stands = np.array([_current(instance, types, app) for app in range(len(instance.apps))], np.int64).reshape(-1, 2)
    return Configurations(
        app=table[:, 0],
        type=table[:, 1],
        units=table[:, 2],
        goodput=np.concatenate(goodputs) if goodputs else np.zeros(0),
        batch=table[:, 3],
        current=(stands[table[:, 0]] == table[:, 1:3]).all(axis=1),
    )


def _current(instance: Instance, types: Types, app: int) -> tuple[int, int]:
    """Return the type on which the app stands and its units; (-1, 0) if it has nothing that it may keep."""
    row = instance.rows[app]
    on = sorted({int(types.of[node]) for node in row})
    return (on[0], sum(row.values())) if len(on) == 1 and instance.kept[app] else (-1, 0)


def _units(per_node: int, least: int, total: int, now: int) -> Ints:
    """Return the numbers of units that are offered, ascending."""
    offered = {least, *(2**power for power in range(max(per_node, 1).bit_length()) if 2**power < per_node), per_node}
    nodes = 2
    while nodes * per_node <= total:
        offered.add(nodes * per_node)
        nodes += 1 if nodes < EACH else nodes // 4
    if now:
        offered.add(now)
    return np.array(sorted(n for n in offered if least <= n <= max(total, now)), np.int64)
