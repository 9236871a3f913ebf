"""How many containers each app should have, before it is asked where: a linear program over classes of nodes.

Nodes are taken together by shape, so the program is small, and what it promises is an upper bound on what any placement
can reach.  For each app that runs it says either "stays" or "changes", in the tightest linear form (the convex hull of the
two, by disjunctive programming; Balas 1979): with r_i the part that changes and z_iκ what it gets then in class κ,

    n_i = n⁰_i (1 - r_i) + Σ_κ z_iκ,    n_min_i r_i ≤ Σ_κ z_iκ ≤ n_max_i r_i,    Σ_i r_i ≤ R
    Σ_i d_ik (y⁰_iκ (1 - r_i) + z_iκ) ≤ room_κk
    Σ_i F_i ≤ 2mθ1 + ξ,   F_i = |δ_i n⁰_i - ŝ_i| (1 - r_i) + φ_i,   φ_i ≥ the integer hull of |δ_i n - ŝ_i| at Σ_κ z_iκ

(Dorm paper, arXiv 1704.06738, eqs. 1-4).  The hull has three pieces: the two sides of the absolute value, and the chord
between the two integers around ŝ_i/δ_i.

Most apps stay.  The program holds only candidates, and the duals tell what any other app would gain by a change (column
generation, Dantzig and Wolfe 1960): whoever would gain joins, and when nobody does, the bound is that of the whole program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array

from dorm.core.policies.classes import classes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.policies.integer import Flags, Floats, Instance, Ints, Rows, Terms

MOST_CLASSES = 16
"""Of nodes; more shapes are taken together with their likes."""

GUARD_S = 300.0
"""Only a crash guard; what bounds the work is the size of the programs."""


class Nodes(NamedTuple):
    """Nodes by class."""

    of: Ints
    """The class of each node."""
    room: Floats
    """κ × k: what a class has beside pinned apps, as a part of the cluster's total."""
    allowed: Flags
    """app × κ: whether some node of the class would hold a container of the app."""


def node_classes(instance: Instance) -> Nodes:
    """By shape and by what they are eligible for; the rarest are merged with the most similar where there are too many."""
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
    """A class for each shape.  Similar is what points the same way: nodes of one ratio serve the same apps."""
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


class Program:
    """The count program of one instance.

    `free` apps are placed anew at no price (they start, or were hit); `may_change` apps run and may be changed.  All
    others stay as `rows` has them.
    """

    def __init__(
        self, instance: Instance, nodes: Nodes, terms: Terms, rows: Rows, free: Flags, may_change: Flags, budget: int
    ) -> None:
        self.instance, self.terms, self.budget = instance, terms, budget
        self.nodes = nodes
        self.free, self.may_change = free, may_change
        self.kinds = len(instance.kinds)
        self.use = np.where(np.isfinite(instance.fractions), instance.fractions, 0.0)
        self.unit = np.where(np.isfinite(instance.unit), instance.unit, 0.0)
        self.stay = self._by_class(rows)
        self.n = np.where(free, 0, np.array([sum(row.values()) for row in rows], np.int64))
        self.low = instance.n_min.astype(np.float64)
        self.high = np.minimum(instance.n_max, np.maximum(instance.fits_empty, instance.n_min)).astype(np.float64)
        self.loss_price = 10.0 * max(self.kinds, 1)
        self.floor_price = 3.0 * float(instance.worth.max(initial=0.0))
        self.floors = np.where(terms.floors > instance.n_min, terms.floors, 0).astype(np.float64)
        self._hull()

    def _by_class(self, rows: Rows) -> Floats:
        """y⁰_iκ"""
        stay = np.zeros((len(rows), len(self.nodes.room)))
        app = np.array([i for i, row in enumerate(rows) if not self.free[i] for _ in row], np.int64)
        node = np.array([j for i, row in enumerate(rows) if not self.free[i] for j in row], np.int64)
        count = np.array([c for i, row in enumerate(rows) if not self.free[i] for c in row.values()], np.int64)
        np.add.at(stay, (app, self.nodes.of[node]), count)
        stay[self.instance.pinned] = 0.0  # They are not part of the room.
        return stay

    def limit(self, high: Floats) -> None:
        """From now on no app gets more than this."""
        self.high = np.maximum(high, self.low)
        self._hull()

    def _hull(self) -> None:
        """f, the chord's slope σ and its value at n = 0 for each app."""
        safe = np.where(self.unit > 0, self.unit, 1.0)
        aim = np.where(self.unit > 0, self.terms.shares / safe, 0.0)
        below = np.clip(np.floor(aim + 1e-9), self.low, np.maximum(self.high - 1, self.low))
        at = np.abs(self.unit * below - self.terms.shares)
        self.chord = np.abs(self.unit * (below + 1) - self.terms.shares) - at
        self.chord_at_0 = at - self.chord * below
        self.below = below

    def loss(self, n: Floats) -> Floats:
        """|δn - ŝ| at each count."""
        return np.abs(self.unit * n - self.terms.shares)

    def solve(self, candidates: Sequence[int], changing: Sequence[int], *, node_limit: int = 0) -> Relaxed | None:
        """The program in which `changing` apps change for sure, `candidates` may, and the rest stays; with a `node_limit`
        in whole numbers.  None where the solver has no answer."""
        build = _Build(self, candidates, sorted([*np.flatnonzero(self.free).tolist(), *changing]))
        return build.solve_whole(node_limit) if node_limit else build.solve()

    def value_of_staying(self, duals: Relaxed) -> Floats:
        """What each app's present containers are worth at the duals' prices."""
        price = (self.stay * (self.use @ duals.room_price.T)).sum(axis=1)
        n = self.n.astype(np.float64)
        short = np.maximum(self.floors - n, 0.0)
        return self.instance.worth * n - price - duals.loss_price * self.loss(n) - self.floor_price * short

    def value_of_changing(self, duals: Relaxed) -> Floats:
        """The most that any count of containers would be worth: F is piecewise linear, so the best is at a corner."""
        each = self.instance.worth[:, None] - self.use @ duals.room_price.T
        best = np.where(self.nodes.allowed, each, -np.inf).max(axis=1, initial=-np.inf)
        values = np.full(len(self.unit), -np.inf)
        for corner in (self.low, self.high, self.below, self.below + 1, self.floors):
            n = np.clip(corner, self.low, self.high)
            short = np.maximum(self.floors - n, 0.0)
            worth = np.where(np.isfinite(best), best, -1e9) * n
            values = np.maximum(values, worth - duals.loss_price * self.loss(n) - self.floor_price * short)
        return values


@dataclass
class Relaxed:
    """A solved program."""

    value: float
    """Utilization less the prices of changes, of excess and of what lacks below floors."""
    n: dict[int, float]
    """What each app that is in the program gets when it changes, times the part of it that does."""
    by_class: dict[int, list[tuple[int, float]]]
    """The same by class of nodes, where there is any."""
    part: dict[int, float]
    """r_i; 1 for apps that change for sure."""
    room_price: Floats
    """κ × k: what a further part of a resource would be worth (duals); none in whole numbers."""
    loss_price: float = 0.0
    change_price: float = 0.0


class _Build:
    """Columns: for each app z_iκ, φ_i, a lack below its floor, and r_i where it may also stay; then ξ."""

    def __init__(self, program: Program, candidates: Sequence[int], fixed: Sequence[int]) -> None:
        p = self.program = program
        instance = p.instance
        self.apps = np.array([*fixed, *candidates], np.int64)
        self.optional = np.zeros(len(self.apps), np.bool_)
        self.optional[len(fixed) :] = True
        apps, count, kappas = self.apps, len(self.apps), len(p.nodes.room)
        allowed = p.nodes.allowed[apps]
        place, kappa = np.nonzero(allowed)
        self.place, self.kappa = place, kappa
        z = np.arange(len(place))
        self.z = z
        phi = len(z) + np.arange(count)
        lack = len(z) + count + np.arange(count)
        r = np.full(count, -1)
        optional = np.flatnonzero(self.optional)
        r[optional] = len(z) + 2 * count + np.arange(len(optional))
        self.r = r
        self.xi = len(z) + 2 * count + len(optional)
        self.columns = self.xi + 1

        cost = np.zeros(self.columns)
        cost[z] = -instance.worth[apps[place]]
        cost[lack] = p.floor_price
        here = apps[optional]
        n0 = p.n[here].astype(np.float64)
        stay_short = np.maximum(p.floors[here] - n0, 0.0)
        cost[r[optional]] = instance.worth[here] * n0 + p.terms.prices[here] - p.floor_price * stay_short
        cost[self.xi] = p.loss_price
        self.cost = cost
        chosen = np.isin(np.arange(len(p.n)), apps[~self.optional])
        staying = ~chosen
        known = np.isfinite(instance.unit)
        loss0 = np.where(known, p.loss(p.n.astype(np.float64)), 0.0)
        self.constant = float((instance.worth * p.n)[staying].sum()) - float(p.terms.prices[apps[~self.optional]][
            instance.kept[apps[~self.optional]]].sum())
        self.constant -= p.floor_price * float(np.maximum(p.floors - p.n, 0.0)[staying & p.may_change].sum())

        rows: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        # Room of each class and kind.
        kappa_count, m = kappas, p.kinds
        used = (p.stay[staying][:, :, None] * p.use[staying][:, None, :]).sum(axis=0)
        right = (p.nodes.room - used).reshape(-1)
        zk = np.repeat(z, m)
        row = (kappa[:, None] * m + np.arange(m)).reshape(-1)
        value = p.use[apps[place]].reshape(-1)
        ry = np.repeat(r[optional], kappa_count * m)
        rrow = np.tile(np.arange(kappa_count * m), len(optional))
        rvalue = -(p.stay[here][:, :, None] * p.use[here][:, None, :]).reshape(-1)
        rows.append((np.concatenate([row, rrow]), np.concatenate([zk, ry]), np.concatenate([value, rvalue]), right))
        self.room_rows = kappa_count * m
        # Fairness.
        units = p.unit[apps] > 0
        at = np.flatnonzero(units)
        fair = np.zeros(0)
        one = np.zeros
        loss_row_cols = np.concatenate([phi[at], r[optional], [self.xi]])
        loss_row_vals = np.concatenate([np.ones(len(at)), -loss0[here], [-1.0]])
        budget = p.terms.loss_budget - float(loss0[staying].sum())
        rows.append((one(len(loss_row_cols), np.int64), loss_row_cols, loss_row_vals, np.array([budget])))
        # Σ r ≤ R
        left = p.budget - int(p.may_change[apps[~self.optional]].sum())
        rows.append((one(len(optional), np.int64), r[optional], np.ones(len(optional)), np.array([float(left)])))
        # The hull, bounds and floors: sums of z, and either r or 1 on the other side.
        def per_app(slope: Floats, column: np.ndarray | None, offset: Floats, which: np.ndarray) -> None:
            """slope · Σz - column ≤ -offset · (r or 1), for the apps at `which`."""
            index = np.full(count, -1)
            index[which] = np.arange(len(which))
            mine = index[place] >= 0
            row = [index[place[mine]]]
            col = [z[mine]]
            val = [slope[place[mine]]]
            if column is not None:
                row.append(np.arange(len(which)))
                col.append(column[which])
                val.append(np.full(len(which), -1.0))
            opt = which[self.optional[which]]
            row.append(index[opt])
            col.append(r[opt])
            val.append(offset[opt])
            right = np.where(self.optional[which], 0.0, -offset[which])
            rows.append((np.concatenate(row), np.concatenate(col), np.concatenate(val), right))

        unit, share = p.unit[apps], p.terms.shares[apps]
        ones, everyone = np.ones(count), np.arange(count)
        per_app(unit, phi, -share, at)
        per_app(-unit, phi, share, at)
        per_app(p.chord[apps], phi, p.chord_at_0[apps], at)
        per_app(ones, None, -p.high[apps], everyone)
        per_app(-ones, None, p.low[apps], everyone)
        per_app(-ones, lack, p.floors[apps], np.flatnonzero(p.floors[apps] > 0))
        del fair
        offsets = np.cumsum([0, *(len(right) for _, _, _, right in rows)])
        self.matrix = coo_array(
            (
                np.concatenate([val for _, _, val, _ in rows]),
                (
                    np.concatenate([row + offset for (row, _, _, _), offset in zip(rows, offsets, strict=False)]),
                    np.concatenate([col for _, col, _, _ in rows]),
                ),
            ),
            shape=(int(offsets[-1]), self.columns),
        ).tocsc()
        self.right = np.concatenate([right for _, _, _, right in rows])
        self.upper = np.full(self.columns, np.inf)
        self.upper[r[optional]] = 1.0

    def solve(self) -> Relaxed | None:
        result = linprog(
            self.cost,
            A_ub=self.matrix,
            b_ub=self.right,
            bounds=np.column_stack([np.zeros(self.columns), self.upper]),
            method="highs-ds",
            options={"time_limit": GUARD_S},
        )
        if result.x is None or result.status != 0:
            return None
        duals = np.maximum(-result.ineqlin.marginals, 0.0)
        found = self._read(result.x, float(result.fun))
        found.room_price = duals[: self.room_rows].reshape(-1, self.program.kinds)
        found.loss_price, found.change_price = float(duals[self.room_rows]), float(duals[self.room_rows + 1])
        return found

    def solve_whole(self, node_limit: int) -> Relaxed | None:
        integrality = np.zeros(self.columns)
        integrality[self.z] = 1
        integrality[self.r[self.optional]] = 1
        result = milp(
            self.cost,
            integrality=integrality,
            bounds=Bounds(np.zeros(self.columns), self.upper),
            constraints=LinearConstraint(self.matrix, -np.inf, self.right),
            options={"node_limit": node_limit, "mip_rel_gap": 1e-5, "time_limit": GUARD_S},
        )
        if result.x is None:
            return None
        return self._read(result.x, float(result.fun))

    def _read(self, x: Floats, objective: float) -> Relaxed:
        sums = np.bincount(self.place, weights=x[self.z], minlength=len(self.apps))
        parts = np.where(self.optional, x[self.r], 1.0)
        apps = self.apps.tolist()
        by_class: dict[int, list[tuple[int, float]]] = {}
        for column in np.flatnonzero(x[self.z] > 1e-6).tolist():
            group = by_class.setdefault(apps[self.place[column]], [])
            group.append((int(self.kappa[column]), float(x[column])))
        return Relaxed(
            by_class=by_class,
            value=self.constant - objective,
            n=dict(zip(apps, sums.tolist(), strict=True)),
            part=dict(zip(apps, parts.tolist(), strict=True)),
            room_price=np.zeros((0, 0)),
        )
