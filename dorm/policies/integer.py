"""The problem in sorted integer arrays, and what policies compute from it: room, order, shares, fairness loss, utilization.

Apps and nodes are sorted by id, so the order in which they are given has no effect; `arrival` keeps the order of arrival.
`scoring` rates an answer.

Apps with gangs are counted in gangs here (one gang has `gang` times the demand and is whole on one node), and drained nodes
are left out as if they were gone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import shares
from dorm.policies.classes import classes
from dorm.policies.matching import satisfies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dorm.policies.problem import AppDemand, NodeRoom, Problem

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Rows = Sequence[dict[int, int]]
    """Counts of each app by node, only positive ones: a sparse matrix."""

PORTS = "ports"
"""Name of the last column if ports may limit a placement: containers that a node can serve."""

LARGEST = 2**46
"""Quantities are clipped here (64 TiB, in bytes), so sums over 100,000 nodes stay exact in 64 bits."""

MOST_WEIGHT = 1e100

LOSS_TOLERANCE = 1e-9
"""Fairness losses closer than this are equal."""


@dataclass(frozen=True, eq=False)
class Instance:
    """A `Problem` as numbers.  Matrices have apps as rows and nodes (or kinds of resources) as columns, sorted by id."""

    kinds: tuple[str, ...]
    """Kinds that some node has; then `PORTS`, if they may limit a placement."""
    measured: int
    """Number of the kinds that are resources, which utilization and shares count: all but `PORTS`."""
    nodes: tuple[str, ...]
    node_rooms: tuple[NodeRoom, ...]
    """The same nodes, as given."""
    apps: tuple[AppDemand, ...]
    arrival: tuple[int, ...]
    """Rows in order of arrival."""
    capacity: Ints
    totals: Ints
    demand: Ints
    n_min: Ints
    n_max: Ints
    gang: Ints
    """Containers in one unit of `n_min`, `n_max` and all counts."""
    rows: tuple[dict[int, int], ...]
    """x⁰ on the nodes of the problem."""
    pinned: Flags
    running: Flags
    """Had containers, on any node."""
    absent: Flags
    """None of its containers runs now: its containers are a reservation."""
    forced: Flags
    """Runs, is not pinned, and cannot stay as it is."""
    room: Ints
    """Capacity less what pinned apps hold."""
    eligible: Flags
    """Whether a node satisfies a requirement: one row for each distinct one, the first for none."""
    requirement: Ints
    """The app's row of `eligible`."""
    lacking: Flags
    """Needs a kind that no node has."""
    fits_empty: Ints
    """Number of containers of an app that the cluster holds when it is empty, at most n_max."""
    fractions: Floats
    """d_ik / C_k of the measured kinds."""
    use: Floats
    """d_ik / C_k of all kinds."""
    unit: Floats
    """δ_i"""
    worth: Floats
    """u_i = Σ_k d_ik / C_k, the contribution of one container to U."""
    drained: tuple[NodeRoom, ...]

    @property
    def possible(self) -> Flags:
        """Apps that the empty cluster can run; the others must not delay any app."""
        return (self.fits_empty >= self.n_min) | self.pinned

    @property
    def in_budget(self) -> int:
        """|P|: the number of running apps, a part of which θ2 allows to change."""
        return int((self.running & ~self.absent).sum())

    @property
    def free_to_move(self) -> Flags:
        return self.possible & ~self.pinned

    @property
    def kept(self) -> Flags:
        """Whether each app runs and may stay: it is never stopped, and counts against θ2 if changed."""
        return self.running & ~self.pinned & ~self.forced

    @cached_property
    def count(self) -> Ints:
        """n⁰ on the nodes of the problem."""
        return np.array([sum(row.values()) for row in self.rows], np.int64)

    @cached_property
    def current(self) -> Ints:
        """x⁰ as a dense matrix, for small problems."""
        return dense(self, self.rows)

    @cached_property
    def holds(self) -> Ints:
        """How many containers of an app each node holds next to pinned apps, at most n_max (dense)."""
        holds = np.repeat(np.where(self.lacking, 0, self.n_max)[:, None], len(self.room), axis=1)
        for k in range(self.demand.shape[1]):
            needs = self.demand[:, k] > 0
            holds[needs] = np.minimum(holds[needs], self.room[None, :, k] // self.demand[needs, k][:, None])
        holds[~self.eligible[self.requirement]] = 0
        return holds


def read(problem: Problem) -> Instance:
    """Convert a problem.  Raises `ValueError` if two apps or two nodes have the same id."""
    named = sorted(problem.nodes, key=lambda node: node.id)
    order = sorted(range(len(problem.apps)), key=lambda place: problem.apps[place].id)
    apps = tuple(problem.apps[place] for place in order)
    if len({node.id for node in named}) < len(named) or len({app.id for app in apps}) < len(apps):
        raise ValueError("two apps or two nodes have the same id")
    nodes = [node for node in named if not node.drained]
    column = {node.id: j for j, node in enumerate(nodes)}
    kinds = sorted({kind for node in nodes for kind, amount in node.capacity.items() if amount > 0})
    measured = len(kinds)
    capacity = _matrix([[_clip(node.capacity.get(kind, 0)) for kind in kinds] for node in nodes], measured)
    gang = np.array([max(app.gang, 1) for app in apps], np.int64)
    demand = _matrix(
        [[_clip(app.demand.get(kind, 0) * max(app.gang, 1), 2 * LARGEST) for kind in kinds] for app in apps],
        len(kinds),
    )
    have = set(kinds)
    lacking = np.array([any(app.demand[kind] > 0 for kind in app.demand.keys() - have) for app in apps], np.bool_)
    n_min = -(-np.array([max(_clip(app.n_min), 1) for app in apps], np.int64) // gang)
    n_max = np.array([_clip(app.n_max) for app in apps], np.int64) // gang
    if (most := _served(nodes, apps, capacity, demand, gang)) is not None:
        kinds.append(PORTS)
        capacity, demand = np.column_stack([capacity, most]), np.column_stack([demand, gang])
    eligible, goes_by = _eligible(nodes, apps)
    rows, displaced = _rows(apps, column)
    pinned = np.array([app.pinned for app in apps], np.bool_)
    running = np.array([bool(app.current) for app in apps], np.bool_)
    count = np.array([sum(app.current.values()) for app in apps], np.int64)
    app, node, each = entries(rows)
    used = each[:, None] * demand[app]
    by_pinned = pinned[app]
    again = np.array([app.again and not app.pinned for app in apps], np.bool_)[app]
    overfull: Flags = np.asarray((sums(node, used, len(nodes)) > capacity).any(axis=1))
    # An app whose owner requested a restart, perhaps with a larger demand, gives up its own room: its neighbors need not move
    # for it.
    without: Flags = np.asarray((sums(node[~again], used[~again], len(nodes)) > capacity).any(axis=1))
    displaced[app[np.where(again, overfull[node], without[node]) | ~eligible[goes_by[app], node]]] = True
    used_by_pinned = sums(node[by_pinned], used[by_pinned], len(nodes))
    unbound = (count < n_min * gang) | (count > n_max * gang) | (count % gang != 0) | lacking
    use = shares.demand_fractions(demand, capacity.sum(axis=0))
    use[lacking] = math.inf
    fractions = use[:, :measured]
    return Instance(
        kinds=tuple(kinds),
        measured=measured,
        nodes=tuple(column),
        node_rooms=tuple(nodes),
        apps=apps,
        arrival=tuple(int(row) for row in np.argsort(np.array(order, np.int64), kind="stable")),
        capacity=capacity,
        totals=capacity.sum(axis=0),
        demand=demand,
        n_min=n_min,
        n_max=n_max,
        gang=gang,
        rows=rows,
        pinned=pinned,
        running=running,
        absent=np.array([app.absent for app in apps], np.bool_),
        forced=running & ~pinned & (displaced | unbound),
        room=np.maximum(capacity - used_by_pinned, 0),
        eligible=eligible,
        requirement=goes_by,
        lacking=lacking,
        fits_empty=_fits_empty(capacity, eligible, demand, n_max, goes_by, lacking),
        fractions=fractions,
        use=use,
        unit=shares.dominant_units(fractions),
        worth=np.where(lacking, 0.0, fractions.sum(axis=1)),
        drained=tuple(node for node in named if node.drained),
    )


def _served(
    nodes: Sequence[NodeRoom], apps: Sequence[AppDemand], capacity: Ints, demand: Ints, gang: Ints
) -> Ints | None:
    """Return how many containers the ports of each node serve; None if other resources always bind first: the usual case,
    which must cost nothing."""
    if all(node.ports is None for node in nodes):
        return None
    wanted = sum(max(_clip(app.n_max), sum(app.current.values())) for app in apps)
    most = np.full(len(nodes), _clip(wanted), np.int64)
    least = (demand // gang[:, None]).min(axis=0, initial=LARGEST)
    for k in np.flatnonzero(least > 0).tolist():
        most = np.minimum(most, capacity[:, k] // least[k])
    served = np.array([LARGEST if node.ports is None else _clip(node.ports.most) for node in nodes], np.int64)
    binds = served < most
    # Nodes that are not limited get one value, so that equal nodes stay equal.
    return np.where(binds, served, most.max(initial=0)) if binds.any() else None


def _clip(amount: int, most: int = LARGEST) -> int:
    """Clip a quantity; demands above what any node can have fit nowhere."""
    return min(max(amount, 0), most)


def _matrix(rows: list[list[int]], columns: int) -> Ints:
    return np.array(rows, np.int64).reshape(len(rows), columns)


def entries(rows: Rows) -> tuple[Ints, Ints, Ints]:
    """Return app, node and count of each place where an app has containers."""
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    total = int(sizes.sum())
    node = np.fromiter(chain.from_iterable(rows), np.int64, total)
    count = np.fromiter(chain.from_iterable(row.values() for row in rows), np.int64, total)
    return np.repeat(np.arange(len(rows)), sizes), node, count


def sums(node: Ints, amounts: Ints, nodes: int) -> Ints:
    """Return the sums of each kind by node; column by column, which is many times as fast as by rows."""
    total = np.zeros((amounts.shape[1], nodes), np.int64)
    for k, column in enumerate(amounts.T):
        np.add.at(total[k], node, column)
    return np.ascontiguousarray(total.T)


def _eligible(nodes: Sequence[NodeRoom], apps: Sequence[AppDemand]) -> tuple[Flags, Ints]:
    """Evaluate each distinct requirement once for each distinct set of labels."""
    texts = ["", *sorted({app.require for app in apps if app.require})]
    place = {text: row for row, text in enumerate(texts)}
    eligible = np.ones((len(texts), len(nodes)), np.bool_)
    if len(texts) > 1:
        labelled = [tuple(sorted(node.labels.items())) for node in nodes]
        for row, text in enumerate(texts[1:], start=1):
            known = {labels: satisfies(text, dict(labels)) for labels in sorted(set(labelled))}
            eligible[row] = [known[labels] for labels in labelled]
    return eligible, np.array([place[app.require] for app in apps], np.int64)


def _rows(apps: Sequence[AppDemand], column: dict[str, int]) -> tuple[tuple[dict[int, int], ...], Flags]:
    """Return counts by column, in gangs, and whether a node of the app is gone (or a gang is not whole on its node)."""
    rows = []
    displaced = np.zeros(len(apps), np.bool_)
    for i, app in enumerate(apps):
        gang = max(app.gang, 1)
        there = [(column[node], count) for node, count in app.current.items() if node in column]
        displaced[i] = len(there) < len(app.current) or (gang > 1 and any(count % gang for _, count in there))
        rows.append({j: min(count // gang, LARGEST) for j, count in sorted(there) if count >= gang})
    return tuple(rows), displaced


def _fits_empty(capacity: Ints, eligible: Flags, demand: Ints, n_max: Ints, goes_by: Ints, lacking: Flags) -> Ints:
    """Return `fits_empty`, computed by shape of node, as there are few shapes."""
    shapes = classes(np.hstack([capacity, eligible.T.astype(np.int64)]))
    total = np.zeros(len(demand), np.int64)
    most = np.where(lacking, 0, n_max)
    for shape, size in zip(shapes.rows, shapes.size.tolist(), strict=True):
        room, allowed = shape[: capacity.shape[1]], shape[capacity.shape[1] :]
        here = np.where(allowed[goes_by] > 0, most, 0)
        for k in range(capacity.shape[1]):
            needs = demand[:, k] > 0
            here[needs] = np.minimum(here[needs], room[k] // demand[needs, k])
        total = np.minimum(total + np.minimum(here * size, most), most)
    return total


def dense(instance: Instance, rows: Rows) -> Ints:
    """Return counts as a matrix of apps and nodes."""
    x = np.zeros((len(rows), len(instance.nodes)), np.int64)
    for i, row in enumerate(rows):
        for node, count in row.items():
            x[i, node] = count
    return x


def rows_of(x: Ints) -> list[dict[int, int]]:
    """Return a matrix of counts as rows."""
    rows: list[dict[int, int]] = [{} for _ in range(len(x))]
    for i, j in zip(*(part.tolist() for part in np.nonzero(x)), strict=True):
        rows[i][j] = int(x[i, j])
    return rows


def counts_of(rows: Rows) -> Ints:
    """Return n_i."""
    return np.array([sum(row.values()) for row in rows], np.int64)


def free_room(instance: Instance, rows: Rows) -> Ints:
    """Return the free room on each node next to pinned apps and the containers of `rows`."""
    app, node, count = entries(rows)
    count = np.where(instance.pinned[app], 0, count)
    return instance.room - sums(node, count[:, None] * instance.demand[app], len(instance.nodes))


def queue(instance: Instance) -> list[int]:
    """Return rows of the apps that may or may not run: those whose partition was hit before those that wait, then by
    arrival."""
    free_to_move, kept = instance.free_to_move, instance.kept
    askers = [i for i in instance.arrival if free_to_move[i] and not kept[i]]
    return [i for i in askers if instance.running[i]] + [i for i in askers if not instance.running[i]]


def aged(instance: Instance, patience_s: float) -> Flags:
    """Return which apps have waited for longer than `patience_s`."""
    waited = np.array([app.waited_s for app in instance.apps], np.float64)
    return ~instance.running & instance.possible & (waited > patience_s)


def changed(instance: Instance, rows: Rows) -> Flags:
    """Return which apps that ran are not exactly as they were, forced or not."""
    flags = np.array([row is not was and row != was for row, was in zip(rows, instance.rows, strict=True)], np.bool_)
    flags |= instance.forced  # A part of it is gone, regardless of the rest.
    return flags & instance.running & ~instance.pinned


def loss(instance: Instance, n: Ints, theoretical: Floats) -> float:
    """Return F against the given ŝ."""
    known = np.isfinite(instance.unit)
    return math.fsum(np.abs(n[known] * instance.unit[known] - theoretical[known]).tolist())


def utilization(instance: Instance, n: Ints) -> float:
    kinds, used = instance.kinds[: instance.measured], n @ instance.demand
    return shares.utilization(
        dict(zip(kinds, used.tolist(), strict=False)),
        dict(zip(kinds, instance.totals.tolist(), strict=False)),
    )


def theoretical_shares(instance: Instance, entitled: Flags) -> Floats:
    """Return ŝ_i among the given apps; the others have none.  No app is owed more containers than an empty cluster would hold.

    ŝ_i is rounded to 1e-9, and snapped to a whole number of containers within that tolerance, so an app that has exactly that
    number loses nothing.  Only ratios of weights matter; extreme ones are clipped to keep sums finite."""
    weights = np.nan_to_num(np.array([app.weight for app in instance.apps], np.float64), nan=0.0, posinf=MOST_WEIGHT)
    weights = np.where(weights > 0, np.clip(weights, 1 / MOST_WEIGHT, MOST_WEIGHT), 0.0)
    caps = np.where(instance.pinned, np.maximum(instance.fits_empty, instance.count), instance.fits_empty)
    exact = shares.theoretical_shares(instance.fractions, weights, np.where(entitled, caps, 0))
    unit = np.where(np.isfinite(instance.unit) & (instance.unit > 0), instance.unit, 1.0)
    whole = np.rint(exact / unit) * unit
    return np.where(np.abs(whole - exact) < LOSS_TOLERANCE, whole, exact)


def level(held: float, weight: float) -> float:
    """Return holdings per weight, to nine digits, so only the ratio of weights decides; apps without weight come last."""
    return float(f"{held / min(weight, MOST_WEIGHT):.9g}") if weight > 0 else math.inf
