"""How many containers each app should have, before they are placed: a linear program over classes of nodes.

Nodes are grouped by shape, so the program is small, and its value is an upper bound on what any placement can reach.  For each
running app it decides "stays" or "changes", in the tightest linear form (the convex hull of the two, by disjunctive
programming; Balas 1979): with r_i the part that changes and z_iκ what it then gets in class κ,

    n_i = n⁰_i (1 - r_i) + Σ_κ z_iκ,    n_min_i r_i ≤ Σ_κ z_iκ ≤ n_max_i r_i,    Σ_i r_i ≤ R
    Σ_i d_ik (y⁰_iκ (1 - r_i) + z_iκ) ≤ room_κk
    Σ_i F_i ≤ 2mθ1 + ξ,   F_i = |δ_i n⁰_i - ŝ_i| (1 - r_i) + φ_i,   φ_i ≥ the integer hull of |δ_i n - ŝ_i| at Σ_κ z_iκ

(Dorm paper, arXiv 1704.06738, eqs. 1-4).  The hull has three pieces: the two sides of the absolute value, and the chord
between the two integers around ŝ_i/δ_i.

Most apps stay.  The program holds only candidates, and the duals show the gain of any other app by a change (column
generation, Dantzig and Wolfe 1960): apps that would gain join, and when none would, the bound is that of the whole
program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from dorm.policies.classes import classes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Flags, Floats, Instance, Ints, Rows
    from dorm.policies.scoring import Terms

MOST_CLASSES = 16
"""Classes of nodes; further shapes are merged with similar ones."""

INFEASIBLE = 2
"""Status of `linprog`."""

GUARD_S = 300.0
"""Only a guard against crashes; the size of the programs bounds the work."""

SOLVER: Any = {"time_limit": GUARD_S, "presolve": False}
"""Presolving finds little in these programs and takes a sixth of the time."""


class Nodes(NamedTuple):
    """Nodes by class."""

    of: Ints
    """The class of each node."""
    room: Floats
    """κ × k: the capacity of a class without pinned apps, as a part of the cluster's total."""
    allowed: Flags
    """app × κ: whether some node of the class would hold a container of the app."""


def node_classes(instance: Instance) -> Nodes:
    """Group nodes by shape and eligibility; if there are too many classes, the rarest are merged with the most similar."""
    eligible = instance.eligible.T.astype(np.int64)
    shapes = classes(np.hstack([instance.capacity, eligible]))
    of = _merged(shapes.rows[:, : len(instance.kinds)], shapes.size)
    number = int(of.max(initial=-1)) + 1
    allowed = np.zeros((len(instance.apps), number), np.bool_)
    for shape, group in zip(shapes.rows, of.tolist(), strict=True):
        fits = (instance.demand <= shape[: len(instance.kinds)]).all(axis=1) & ~instance.lacking
        allowed[:, group] |= fits & (shape[len(instance.kinds) :][instance.requirement] > 0)
    node_of = of[shapes.of] if len(of) else np.zeros(0, np.int64)
    room = np.zeros((number, len(instance.kinds)))
    np.add.at(room, node_of, instance.room / np.maximum(instance.totals, 1))
    return Nodes(node_of, room, allowed)


def _merged(shapes: Ints, sizes: Ints) -> Ints:
    """Return a class for each shape.  Similar shapes have similar ratios of resources, so they serve the same apps."""
    if len(shapes) <= MOST_CLASSES:
        return np.arange(len(shapes))
    scaled = shapes / np.maximum(shapes.max(axis=0), 1)
    scaled /= np.maximum(np.sqrt((scaled * scaled).sum(axis=1)), 1e-12)[:, None]
    heads = [int(np.argmax(sizes))]
    nearest = scaled @ scaled[heads[0]]
    while len(heads) < MOST_CLASSES:  # Farthest first (Gonzalez 1985): each new head is the one least like all before.
        heads.append(int(np.argmin(np.round(nearest, 9))))
        nearest = np.maximum(nearest, scaled @ scaled[heads[-1]])
    return np.asarray(np.argmax(np.round(scaled @ scaled[heads].T, 9), axis=1))


class SolverFailed(Exception):
    """The solver raised, stopped, or returned no valid answer."""


class Program:
    """The count program of one instance.

    `free` apps are placed at no price (they start, or were hit); `may_change` apps run and may be changed, at most `budget` of
    them.  All others stay as in `rows`.
    """

    def __init__(
        self, instance: Instance, nodes: Nodes, terms: Terms, rows: Rows, free: Flags, may_change: Flags, budget: int
    ) -> None:
        self.instance, self.terms, self.budget = instance, terms, budget
        self.nodes = nodes
        self.free, self.may_change = free, may_change
        self.kinds = len(instance.kinds)
        self.use = np.where(np.isfinite(instance.use), instance.use, 0.0)
        self.unit = np.where(np.isfinite(instance.unit), instance.unit, 0.0)
        self.stay = self._by_class(rows)
        self.n = np.where(free, 0, np.array([sum(row.values()) for row in rows], np.int64)).astype(np.float64)
        self.low = instance.n_min.astype(np.float64)
        self.high = np.minimum(instance.n_max, np.maximum(instance.fits_empty, instance.n_min)).astype(np.float64)
        self.loss_price = 10.0 * max(self.kinds, 1)
        self.floor_price = 3.0 * float(instance.worth[instance.possible].max(initial=0.0))
        self.floors = np.where(terms.floors > instance.n_min, terms.floors, 0).astype(np.float64)
        self.limits: tuple[float, float] | None = None
        self._hull()

    def _by_class(self, rows: Rows) -> Floats:
        """Return y⁰_iκ; pinned apps are not part of the room, and free ones have none."""
        stay = np.zeros((len(rows), len(self.nodes.room)))
        counted = ~(self.free | self.instance.pinned)
        app = np.array([i for i, row in enumerate(rows) if counted[i] for _ in row], np.int64)
        node = np.array([j for i, row in enumerate(rows) if counted[i] for j in row], np.int64)
        count = np.array([c for i, row in enumerate(rows) if counted[i] for c in row.values()], np.int64)
        np.add.at(stay, (app, self.nodes.of[node]), count)
        return stay

    def limit(self, high: Floats) -> None:
        """From now on no app gets more than this."""
        self.high = np.maximum(high, self.low)
        self._hull()

    def settle(self, excess: float, lack: float) -> None:
        """From now on, this much excess and shortfall below floors is free, and only more has a price: the value is U less
        the prices of changes for answers that are as fair as that, and such an answer always exists."""
        self.limits = excess, lack

    def _hull(self) -> None:
        """f, the chord's slope σ and its value at n = 0 for each app."""
        safe = np.where(self.unit > 0, self.unit, 1.0)
        aim = np.where(self.unit > 0, self.terms.shares / safe, 0.0)
        self.below = np.clip(np.floor(aim + 1e-9), self.low, np.maximum(self.high - 1, self.low))
        at = np.abs(self.unit * self.below - self.terms.shares)
        self.chord = np.abs(self.unit * (self.below + 1) - self.terms.shares) - at
        self.chord_at_0 = at - self.chord * self.below

    def loss(self, n: Floats) -> Floats:
        """Return |δn - ŝ| at each count; 0 for an app that needs a kind that no node has."""
        return np.where(np.isfinite(self.instance.unit), np.abs(self.unit * n - self.terms.shares), 0.0)

    def lack(self, n: Floats) -> Floats:
        """Return how many containers are missing below the floor at each count."""
        return np.maximum(self.floors - n, 0.0)

    def solve(self, candidates: Sequence[int], changing: Sequence[int]) -> Relaxed | None:
        """Solve the program in which `changing` apps change for sure, `candidates` may, and the rest stay.  None if it is
        infeasible.  Raises SolverFailed."""
        return _Build(self, sorted([*np.flatnonzero(self.free).tolist(), *changing]), sorted(candidates)).solve()

    def stay_value(self, relaxed: Relaxed) -> Floats:
        """Return the value of each app's present containers at the prices of an answer."""
        price = (self.stay * (self.use @ relaxed.room_price.T)).sum(axis=1)
        worth = self.instance.worth * self.n - price
        return np.asarray(worth - relaxed.loss_price * self.loss(self.n) - relaxed.lack_price * self.lack(self.n))

    def value_of_changing(self, relaxed: Relaxed) -> Floats:
        """Return the highest value of any count of containers: F is piecewise linear, so the best is at a corner."""
        each = self.instance.worth[:, None] - self.use @ relaxed.room_price.T
        best = np.where(self.nodes.allowed, each, -np.inf).max(axis=1, initial=-np.inf)
        best = np.where(np.isfinite(best), best, -1e9)
        values = np.full(len(self.unit), -np.inf)
        for corner in (self.low, self.high, self.below, self.below + 1, self.floors):
            n = np.clip(corner, self.low, self.high)
            values = np.maximum(
                values, best * n - relaxed.loss_price * self.loss(n) - relaxed.lack_price * self.lack(n)
            )
        return values


@dataclass
class Relaxed:
    """A solved program."""

    value: float
    """Utilization less the prices of changes, of excess and of shares missing below floors."""
    n: dict[int, float]
    """The containers that each app in the program gets when it changes, times the fraction of it that changes."""
    by_class: dict[int, list[tuple[int, float]]]
    """The same by class of nodes, nonzero only."""
    part: dict[int, float]
    """r_i; 1 for apps that change for sure."""
    room_price: Floats
    """κ × k: the value of a further part of a resource (the duals)."""
    loss_price: float
    lack_price: float
    change_price: float
    """The value of one further change."""


class _Rows:
    """Rows of `matrix · x ≤ right`, in blocks."""

    def __init__(self) -> None:
        self.height = 0
        self._parts: list[tuple[Ints, Ints, Floats]] = []
        self._right: list[Floats] = []

    def add(self, entries: Sequence[tuple[Ints, Ints, Floats]], right: Floats) -> int:
        """Add a block: (row within it, column, value) of its entries.  Return its first row."""
        first = self.height
        self._parts += [(row + first, column, value) for row, column, value in entries]
        self._right.append(right)
        self.height += len(right)
        return first

    def matrix(self, columns: int) -> coo_array:
        row, column, value = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return coo_array((value, (row, column)), shape=(self.height, columns))

    def right(self) -> Floats:
        return np.concatenate(self._right)


class _Build:
    """Columns: z_iκ wherever allowed, then for each app φ_i and the share missing below its floor, then r_i for those
    that may also stay, then ξ, and the part missing beyond the limit of a settled program."""

    def __init__(self, program: Program, fixed: Sequence[int], candidates: Sequence[int]) -> None:
        self.program = program
        self.apps = np.array([*fixed, *candidates], np.int64)
        count = len(self.apps)
        self.optional = np.arange(len(fixed), count)
        """Places in `apps` of those that may also stay."""
        self.place, self.kappa = np.nonzero(program.nodes.allowed[self.apps])
        self.z = np.arange(len(self.place))
        self.phi = len(self.z) + np.arange(count)
        self.lack = self.phi + count
        self.r = np.full(count, -1)
        self.r[self.optional] = len(self.z) + 2 * count + np.arange(len(candidates))
        self.xi = len(self.z) + 2 * count + len(candidates)
        self.beyond = self.xi + 1
        chosen = np.zeros(len(program.n), np.bool_)
        chosen[self.apps[: len(fixed)]] = True
        self.staying = ~chosen
        """Apps of which at least a part may stay: all but the fixed ones."""
        self.rows = _Rows()
        self._cost()
        self._room()
        self._fairness()
        self._floors()
        self._hull()

    def _cost(self) -> None:
        p, apps = self.program, self.apps
        here, fixed = apps[self.optional], apps[: len(apps) - len(self.optional)]
        lack_price = p.floor_price if p.limits is None else 0.0
        self.cost = np.zeros(self.beyond + 1)
        self.cost[self.z] = -p.instance.worth[apps[self.place]]
        self.cost[self.lack] = lack_price
        staying = p.instance.worth[here] * p.n[here] - lack_price * p.lack(p.n)[here]
        self.cost[self.r[self.optional]] = staying + p.terms.prices[here]
        self.cost[self.xi], self.cost[self.beyond] = p.loss_price, p.floor_price
        self.upper = np.full(self.beyond + 1, np.inf)
        self.upper[self.r[self.optional]] = 1.0
        stays = self.staying & ~p.instance.pinned
        self.constant = float((p.instance.worth * p.n)[self.staying].sum())
        self.constant -= lack_price * float(p.lack(p.n)[stays & p.may_change].sum())
        self.constant -= float(p.terms.prices[fixed][p.instance.kept[fixed]].sum())

    def _room(self) -> None:
        p, kinds = self.program, self.program.kinds
        self.room_rows = len(p.nodes.room) * kinds
        used = p.stay[self.staying].T @ p.use[self.staying]
        kind = np.tile(np.arange(kinds), len(self.z))
        given = (
            np.repeat(self.kappa, kinds) * kinds + kind,
            np.repeat(self.z, kinds),
            p.use[self.apps[self.place]].reshape(-1),
        )
        here = self.apps[self.optional]
        freed = (p.stay[here][:, :, None] * p.use[here][:, None, :]).reshape(len(here), self.room_rows)
        which, row = np.nonzero(freed)
        taken_back = (row, self.r[self.optional][which], -freed[which, row])
        self.rows.add([given, taken_back], (p.nodes.room - used).reshape(-1))

    def _fairness(self) -> None:
        """Σ F_i ≤ 2mθ1 + ξ, and Σ r_i ≤ R."""
        p, optional = self.program, self.r[self.optional]
        loss = p.loss(p.n)
        measured = np.flatnonzero(p.unit[self.apps] > 0)
        one_row = np.zeros
        self.loss_row = self.rows.add(
            [
                (one_row(len(measured), np.int64), self.phi[measured], np.ones(len(measured))),
                (one_row(len(optional), np.int64), optional, -loss[self.apps[self.optional]]),
                (one_row(1, np.int64), np.array([self.xi]), np.array([-1.0])),
            ],
            np.array([p.terms.loss_budget + (p.limits[0] if p.limits else 0.0) - float(loss[self.staying].sum())]),
        )
        fixed = self.apps[: len(self.apps) - len(optional)]
        left = p.budget - int(p.may_change[fixed].sum())
        self.change_row = self.rows.add(
            [(one_row(len(optional), np.int64), optional, np.ones(len(optional)))], np.array([float(left)])
        )

    def _floors(self) -> None:
        """If the program is settled, bound the total missing below floors."""
        p = self.program
        self.lack_row = -1
        if p.limits is None:
            return
        most = p.limits[1]
        lack, count = p.lack(p.n), len(self.optional)
        stays = self.staying & ~p.instance.pinned & p.may_change
        self.lack_row = self.rows.add(
            [
                (np.zeros(len(self.lack), np.int64), self.lack, np.ones(len(self.lack))),
                (np.zeros(count, np.int64), self.r[self.optional], -lack[self.apps[self.optional]]),
                (np.zeros(1, np.int64), np.array([self.beyond]), np.array([-1.0])),
            ],
            np.array([most - float(lack[stays].sum())]),
        )

    def _hull(self) -> None:
        p, apps = self.program, self.apps
        everyone, ones = np.arange(len(apps)), np.ones(len(apps))
        measured = np.flatnonzero(p.unit[apps] > 0)
        share = p.terms.shares[apps]
        self._each(measured, p.unit[apps], self.phi, -share)
        self._each(measured, -p.unit[apps], self.phi, share)
        self._each(measured, p.chord[apps], self.phi, p.chord_at_0[apps])
        self._each(everyone, ones, None, -p.high[apps])
        self._each(everyone, -ones, None, p.low[apps])
        self._each(np.flatnonzero(p.floors[apps] > 0), -ones, self.lack, p.floors[apps])

    def _each(self, which: Ints, slope: Floats, column: Ints | None, offset: Floats) -> None:
        """Add slope · Σ_κ z_iκ + offset · r_i ≤ column, for each app of `which`; r_i is 1 for those that change for sure."""
        index = np.full(len(self.apps), -1)
        index[which] = np.arange(len(which))
        rows = np.flatnonzero(index[self.place] >= 0)
        optional = which[self.r[which] >= 0]
        entries = [
            (index[self.place[rows]], self.z[rows], slope[self.place[rows]]),
            (index[optional], self.r[optional], offset[optional]),
        ]
        if column is not None:
            entries.append((np.arange(len(which)), column[which], np.full(len(which), -1.0)))
        self.rows.add(entries, np.where(self.r[which] >= 0, 0.0, -offset[which]))

    def solve(self) -> Relaxed | None:
        answer = solved(self.cost, self.rows.matrix(self.beyond + 1), self.rows.right(), self.upper)
        if answer is None:
            return None
        x, least, duals = answer
        p, apps = self.program, self.apps.tolist()
        by_class: dict[int, list[tuple[int, float]]] = {}
        for column in np.flatnonzero(x[self.z] > 1e-6).tolist():
            by_class.setdefault(apps[self.place[column]], []).append((int(self.kappa[column]), float(x[column])))
        sums = np.bincount(self.place, weights=x[self.z], minlength=len(apps))
        return Relaxed(
            value=self.constant - least,
            n=dict(zip(apps, sums.tolist(), strict=True)),
            by_class=by_class,
            part=dict(zip(apps, np.where(self.r >= 0, x[self.r], 1.0).tolist(), strict=True)),
            room_price=duals[: self.room_rows].reshape(-1, p.kinds),
            loss_price=float(duals[self.loss_row]),
            lack_price=p.floor_price if p.limits is None else float(duals[self.lack_row]),
            change_price=float(duals[self.change_row]),
        )


def solved(cost: Floats, matrix: coo_array, right: Floats, upper: Floats) -> tuple[Floats, float, Floats] | None:
    """Minimize cost · x with matrix · x ≤ right and 0 ≤ x ≤ upper: return x, its cost, and the duals of the rows; None if
    infeasible.  Raises SolverFailed for every other failure."""
    bounds: Any = np.column_stack([np.zeros(len(cost)), upper])
    rows: Any = matrix.tocsc()
    try:
        result = linprog(cost, A_ub=rows, b_ub=right, bounds=bounds, method="highs-ds", options=SOLVER)
        if int(result.status) == INFEASIBLE:
            return None
        x, duals = np.asarray(result.x, np.float64), -np.asarray(result.ineqlin.marginals, np.float64)
        least, status = float(result.fun or 0.0), int(result.status)
    except Exception as error:
        raise SolverFailed(str(error)) from error
    sound = status == 0 and x.shape == cost.shape and duals.shape == right.shape
    if not sound or not (np.isfinite(x).all() and np.isfinite(duals).all() and np.isfinite(least)):
        raise SolverFailed(f"status {status}")
    return x, least, np.maximum(duals, 0.0)
