"""The problem in sorted integer matrices, and the exact score of an answer to it.

Solvers work in floating point and greedy answers may be poor, so no answer is trusted: `faults` checks every constraint
in integers, `score` says how good it is goal by goal, and `better` compares two scores lexicographically.  Apps and
nodes are sorted by id, so that the order in which they were named decides nothing; `arrival` keeps who came first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.core import shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dorm.core.policies.problem import AppDemand, Problem

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

LARGEST = 2**48
"""Quantities are clipped here (256 TiB, in bytes), so that sums over thousands of nodes stay exact in 64 bits."""

LOSS_TOLERANCE = 1e-9
"""Fairness losses closer than this are equal."""

WORTH_TOLERANCE = 2e-6
"""Utilizations closer than this part of the worth of the largest container are equal: the solver sees no further."""


@dataclass(frozen=True, eq=False)
class Instance:
    """A `Problem` as numbers.  Matrices have apps as rows and nodes (or kinds of resources) as columns, sorted by id."""

    kinds: tuple[str, ...]
    """Kinds of which some node has any."""
    nodes: tuple[str, ...]
    apps: tuple[AppDemand, ...]
    arrival: tuple[int, ...]
    """Rows in the order of arrival."""
    capacity: Ints
    totals: Ints
    demand: Ints
    n_min: Ints
    n_max: Ints
    current: Ints
    """x⁰ on the nodes that are there."""
    pinned: Flags
    running: Flags
    """Had containers, wherever: the paper's P."""
    forced: Flags
    """Runs, is not pinned, and cannot stay as it is."""
    room: Ints
    """Capacity less what pinned apps hold."""
    holds: Ints
    """How many containers of an app a node holds when nothing but pinned apps is on it, at most n_max."""
    fits_empty: Ints
    """How many containers of an app the cluster holds when it is empty, at most n_max."""
    fractions: Floats
    unit: Floats
    """δ_i"""
    worth: Floats
    """u_i = Σ_k d_ik / C_k, what one container adds to U."""

    @property
    def possible(self) -> Flags:
        """Apps that the empty cluster can run; the others must not stand in anybody's way."""
        return (self.fits_empty >= self.n_min) | self.pinned

    @property
    def free_to_move(self) -> Flags:
        return self.possible & ~self.pinned

    @property
    def kept(self) -> Flags:
        """Runs and may stay as it is: never stopped, and counted against θ2 if changed."""
        return self.running & ~self.pinned & ~self.forced


def read(problem: Problem) -> Instance:
    """Raises `ValueError` where two apps or two nodes have one id."""
    nodes = sorted(problem.nodes, key=lambda node: node.id)
    order = sorted(range(len(problem.apps)), key=lambda place: problem.apps[place].id)
    apps = tuple(problem.apps[place] for place in order)
    column = {node.id: j for j, node in enumerate(nodes)}
    if len(column) < len(nodes) or len({app.id for app in apps}) < len(apps):
        raise ValueError("two apps or two nodes have the same id")
    kinds = sorted({kind for node in nodes for kind, amount in node.capacity.items() if amount > 0})
    capacity = _matrix([[_clip(node.capacity.get(kind, 0)) for kind in kinds] for node in nodes], len(kinds))
    demand = _matrix([[_clip(app.demand.get(kind, 0), 2 * LARGEST) for kind in kinds] for app in apps], len(kinds))
    lacking = np.array(
        [any(amount > 0 and kind not in kinds for kind, amount in app.demand.items()) for app in apps], np.bool_
    )
    n_min = np.array([_clip(app.n_min) for app in apps], np.int64)
    n_max = np.array([_clip(app.n_max) for app in apps], np.int64)
    current = _matrix([[_clip(app.current.get(node.id, 0)) for node in nodes] for app in apps], len(nodes))
    pinned = np.array([app.pinned for app in apps], np.bool_)
    running = np.array([bool(app.current) for app in apps], np.bool_)
    count = np.array([sum(app.current.values()) for app in apps], np.int64)
    gone = np.array([any(node not in column for node in app.current) for app in apps], np.bool_)
    overfull = (current.T @ demand > capacity).any(axis=1)
    unbound = (count < n_min) | (count > n_max) | lacking
    forced = running & ~pinned & (gone | (current[:, overfull] > 0).any(axis=1) | unbound)
    room = np.maximum(capacity - (current * pinned[:, None]).T @ demand, 0)
    fractions = shares.demand_fractions(demand, capacity.sum(axis=0))
    fractions[lacking] = math.inf
    return Instance(
        kinds=tuple(kinds),
        nodes=tuple(node.id for node in nodes),
        apps=apps,
        arrival=tuple(int(row) for row in np.argsort(np.array(order, np.int64), kind="stable")),
        capacity=capacity,
        totals=capacity.sum(axis=0),
        demand=demand,
        n_min=n_min,
        n_max=n_max,
        current=current,
        pinned=pinned,
        running=running,
        forced=forced,
        room=room,
        holds=_holds(room, demand, n_max, lacking),
        fits_empty=np.minimum(_holds(capacity, demand, n_max, lacking).sum(axis=1), n_max),
        fractions=fractions,
        unit=shares.dominant_units(fractions),
        worth=np.where(lacking, 0.0, fractions.sum(axis=1)),
    )


def _clip(amount: int, most: int = LARGEST) -> int:
    """Demands are clipped at more than any node can have, so that an absurd one fits nowhere."""
    return min(max(amount, 0), most)


def _matrix(rows: list[list[int]], columns: int) -> Ints:
    return np.array(rows, np.int64).reshape(len(rows), columns)


def _holds(room: Ints, demand: Ints, n_max: Ints, lacking: Flags) -> Ints:
    """How many containers fit on each node alone, at most n_max."""
    holds = np.repeat(np.where(lacking, 0, n_max)[:, None], len(room), axis=1)
    for k in range(demand.shape[1]):
        needs = demand[:, k] > 0
        holds[needs] = np.minimum(holds[needs], room[None, :, k] // demand[needs, k][:, None])
    return holds


class Terms(NamedTuple):
    """What an answer is judged by, beyond the instance itself."""

    shares: Floats
    """ŝ_i; 0 for an app that cannot run beside the others now."""
    loss_budget: float
    change_budget: int
    floors: Ints
    """A count that each app should have at least, where that is possible."""
    prices: Floats
    """What changing the app costs, in units of U."""
    target: Ints | None = None
    """Where apps would be if θ2 did not hold back one that waits: what the others hold beyond it stands in its way."""


class Score(NamedTuple):
    """Goal by goal, the first that differs decides.  Smaller is better but for `net`."""

    lost: int
    """n_min of apps that ran and cannot go on."""
    waiting: int
    """n_min of apps that are not started."""
    order: tuple[int, ...]
    """1 for each app that gets nothing, in the order of who comes first."""
    in_the_way: int
    """Containers that stand where the target has none."""
    excess: float
    below_floor: int
    net: float
    """U less the price of the changes."""
    changed: int
    moved: int
    """Containers that apps which ran start on a node."""


def queue(instance: Instance) -> list[int]:
    """Rows of the apps that may or may not run: those whose partition was hit before those that wait, then by arrival."""
    askers = [i for i in instance.arrival if instance.free_to_move[i] and not instance.kept[i]]
    return [i for i in askers if instance.running[i]] + [i for i in askers if not instance.running[i]]


def changed(instance: Instance, x: Ints) -> Flags:
    """Which apps that ran are not exactly as they were, forced or not."""
    flags: Flags = instance.running & ~instance.pinned & (x != instance.current).any(axis=1)
    return flags


def loss(instance: Instance, x: Ints, theoretical: Floats) -> float:
    """F against the given ŝ."""
    n = x.sum(axis=1)
    known = np.isfinite(instance.unit)
    return shares.fairness_loss((n[known] * instance.unit[known]).tolist(), theoretical[known].tolist())


def utilization(instance: Instance, x: Ints) -> float:
    used = x.sum(axis=1) @ instance.demand
    return shares.utilization(
        dict(zip(instance.kinds, used.tolist(), strict=True)),
        dict(zip(instance.kinds, instance.totals.tolist(), strict=True)),
    )


def theoretical_shares(instance: Instance, entitled: Flags) -> Floats:
    """ŝ_i among the given apps; the others have none.  Nobody is owed more containers than an empty cluster would hold."""
    weights = np.array([app.weight for app in instance.apps], np.float64)
    caps = np.where(instance.pinned, np.maximum(instance.fits_empty, instance.current.sum(axis=1)), instance.fits_empty)
    return shares.theoretical_shares(instance.fractions, weights, np.where(entitled, caps, 0))


def change_cost(instance: Instance, x: Ints, terms: Terms) -> float:
    return math.fsum(terms.prices[changed(instance, x) & instance.kept].tolist())


def score(instance: Instance, x: Ints, terms: Terms) -> Score:
    n = x.sum(axis=1)
    movable, kept = instance.free_to_move, instance.kept
    short = movable & (n < instance.n_min)
    over = max(0.0, loss(instance, x, terms.shares) - terms.loss_budget)
    moved = np.maximum(x - instance.current, 0)[instance.running & movable].sum()
    in_the_way = 0 if terms.target is None else np.maximum(x - terms.target, 0)[movable].sum()
    return Score(
        lost=int(instance.n_min[short & instance.running].sum()),
        waiting=int(instance.n_min[short & ~instance.running].sum()),
        order=tuple(int(short[i]) for i in queue(instance)),
        in_the_way=int(in_the_way),
        excess=over if over > LOSS_TOLERANCE else 0.0,
        below_floor=int(np.maximum(terms.floors - n, 0)[movable & ~short].sum()),
        net=utilization(instance, x) - change_cost(instance, x, terms),
        changed=int((changed(instance, x) & kept).sum()),
        moved=int(moved),
    )


def resolution(instance: Instance) -> float:
    """Differences of U below this are none."""
    return WORTH_TOLERANCE * float(instance.worth.max(initial=0.0))


def better(instance: Instance, left: Score, right: Score) -> bool:
    """Whether `left` beats `right` at the first goal in which they differ."""
    if left[:4] != right[:4]:
        return left[:4] < right[:4]
    if abs(left.excess - right.excess) > LOSS_TOLERANCE:
        return left.excess < right.excess
    if left.below_floor != right.below_floor:
        return left.below_floor < right.below_floor
    if abs(left.net - right.net) > resolution(instance):
        return left.net > right.net
    return (left.changed, left.moved) < (right.changed, right.moved)


def faults(instance: Instance, x: Ints, change_budget: int) -> list[str]:
    """Every constraint that an answer breaks, in words; empty for one that may be used."""
    found = []
    n = x.sum(axis=1)
    if (x < 0).any():
        found.append("a negative count")
    if (x[instance.pinned] != instance.current[instance.pinned]).any():
        found.append("a pinned app was moved")
    movable = instance.free_to_move
    if (x[movable].T @ instance.demand[movable] > instance.room).any() or (x[movable] > instance.holds[movable]).any():
        found.append("a node is given more than it has")
    if ((n > 0) & ((n < instance.n_min) | (n > instance.n_max)) & ~instance.pinned).any():
        found.append("a count outside n_min..n_max")
    if (n[~instance.possible] > 0).any():
        found.append("an app is placed where it cannot run")
    if (n < instance.n_min)[instance.kept].any():
        found.append("an app that could go on was stopped")
    if int((changed(instance, x) & instance.kept).sum()) > change_budget:
        found.append("more apps changed than θ2 allows")
    return found
