"""The allocation problem as a mixed-integer linear program for `scipy.optimize.milp` (HiGHS), one goal at a time.

    n_i = Σ_j x_ij                                    the size of a partition
    Σ_i d_ik x_ij ≤ room_jk                           no more on a node than it has without pinned apps
    n_min_i run_i ≤ n_i ≤ n_max_i run_i               all of n_min or nothing, for apps that do not run undisturbed
    |x_ij - x⁰_ij| ≤ M_ij r_i,  Σ_i r_i ≤ R           θ2, with the tightest M each variable allows
    F_i ≥ |δ_i n_i - ŝ_i|,  Σ_i F_i ≤ 2mθ1 + ξ        θ1 (Dorm paper, eqs. 1-4 and the linear form that follows them)

The rows for F_i are those of the paper and one more, the chord between the two integers around ŝ_i/δ_i: it is redundant at
integers, and makes the relaxation exact for a single app.  For a running app, all rows express "stays" or "changes" as the
convex hull of the two (as `counts` does), and no x_ij exceeds what fits next to the apps that θ2 keeps in place: that makes
bounds tight, since at most a few apps change.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array, vstack

from dorm.policies import integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dorm.policies.integer import Flags, Floats, Instance, Ints
    from dorm.policies.scoring import Terms

GUARD_S = 300.0
"""Only a crash guard: the number of nodes of the search decides when to stop, which is deterministic."""

NO_SUB_PROGRAMS: dict[str, bool] = {
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_root_reduced_cost": False,
    "mip_heuristic_run_feasibility_jump": False,
}
"""Options of HiGHS for searches from a good answer: heuristics that solve smaller programs in search of a first good one take
longer than all the rest."""

SHORT_SEARCH = 50
"""Nodes of a search for any sufficient answer."""

MARGIN = 2e-6
"""Rows of node capacities are tightened by this part if the solver's tolerance lets an answer overfill a node."""

Row = list[tuple[int, float]]


class Solved(NamedTuple):
    x: Ints | None
    """Counts of all apps, pinned ones included; None if the solver found nothing."""
    bound: float
    """No answer has an objective below this."""
    status: str
    """`optimal`, `infeasible`, `node_limit`, `guard` or `failed`."""


class Relaxed(NamedTuple):
    bound: float
    """No answer has an objective below this."""
    values: Floats
    """Values of all columns."""
    reduced: Floats
    """The growth of the objective with each column."""


class Model:
    """Columns and rows, to which goals are added as they are fixed."""

    def __init__(
        self, instance: Instance, change_budget: int, node_limit: int, effort: Mapping[str, bool] | None = None
    ) -> None:
        self.instance = instance
        self.node_limit = node_limit
        self.effort = effort or {}
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._integral: list[int] = []
        self._rows: list[Row] = []
        self._row_lower: list[float] = []
        self._row_upper: list[float] = []
        self._room_rows: list[int] = []
        self.apps = np.flatnonzero(instance.free_to_move).tolist()
        self.most = most_with_others(instance, change_budget)
        self.x: dict[tuple[int, int], int] = {}
        self.n: dict[int, int] = {}
        self.run: dict[int, int] = {}
        self.r: dict[int, int] = {}
        for app in self.apps:
            self._add_partition(app)
        self._add_rooms()
        if self.r:
            self.add_row(((column, 1.0) for column in self.r.values()), upper=change_budget)

    def add_column(self, lower: float, upper: float, *, integral: bool) -> int:
        self._lower.append(lower)
        self._upper.append(upper)
        self._integral.append(int(integral))
        return len(self._lower) - 1

    def add_row(self, row: Iterable[tuple[int, float]], *, lower: float = -math.inf, upper: float = math.inf) -> None:
        self._rows.append(list(row))
        self._row_lower.append(lower)
        self._row_upper.append(upper)

    def cells(self) -> int:
        """Return the number of pairs of app and node that may be nonzero."""
        return sum(self._upper[column] > 0 for column in self.x.values())

    def fix(self, column: int, value: float) -> None:
        self._lower[column] = self._upper[column] = value

    def cap(self, column: int, value: float) -> None:
        self._upper[column] = value

    def _add_partition(self, app: int) -> None:
        """Add the columns of one app and the rows that connect them."""
        instance = self.instance
        low, high = int(instance.n_min[app]), int(min(instance.n_max[app], self.most[app].sum()))
        kept = bool(instance.kept[app])
        self.n[app] = self.add_column(low if kept else 0, high, integral=True)
        here: Row = []
        for node in np.flatnonzero(instance.holds[app]).tolist():
            column = self.x[app, node] = self.add_column(0, int(self.most[app, node]), integral=True)
            here.append((column, 1.0))
        self.add_row([*here, (self.n[app], -1.0)], lower=0, upper=0)
        if kept:
            self._add_change(app, low, high)
        elif high < low:
            self.run[app] = self.add_column(0, 0, integral=True)
            self.fix(self.n[app], 0)
        else:
            run = self.run[app] = self.add_column(0, 1, integral=True)
            self.add_row([(self.n[app], 1.0), (run, -low)], lower=0)
            self.add_row([(self.n[app], 1.0), (run, -high)], upper=0)

    def _add_change(self, app: int, low: int, high: int) -> None:
        instance = self.instance
        r = self.r[app] = self.add_column(0, 1, integral=True)
        was = instance.current[app]
        total = int(was.sum())
        self.add_row([(self.n[app], 1.0), (r, float(total - high))], upper=total)
        self.add_row([(self.n[app], 1.0), (r, float(total - low))], lower=total)
        for node in np.flatnonzero(instance.holds[app]).tolist():
            column, before = self.x[app, node], int(was[node])
            most = int(self.most[app, node])
            if most > before:
                self.add_row([(column, 1.0), (r, float(before - most))], upper=before)
            if before > 0:
                self.add_row([(column, 1.0), (r, float(before))], lower=before)

    def _add_rooms(self) -> None:
        """Divide each row by the greatest common divisor of its demands, which tightens it for integers, and then by its right
        side, so milli-cores and bytes have the same weight."""
        instance = self.instance
        for node in range(len(instance.nodes)):
            for k in range(len(instance.kinds)):
                users = [(app, int(instance.demand[app, k])) for app in self.apps if (app, node) in self.x]
                users = [(app, amount) for app, amount in users if amount > 0]
                if not users:
                    continue
                step = math.gcd(*(amount for _, amount in users))
                room = int(instance.room[node, k]) // step
                if sum(amount // step * int(instance.holds[app, node]) for app, amount in users) <= room:
                    continue
                self._room_rows.append(len(self._rows))
                self.add_row(((self.x[app, node], amount / step / room) for app, amount in users), upper=1.0)

    def add_fairness(self, terms: Terms) -> int:
        """Add the rows of θ1; return the column of ξ."""
        instance = self.instance
        fixed = math.fsum(
            abs(float(instance.unit[i]) * int(instance.current[i].sum()) - float(terms.shares[i]))
            for i in np.flatnonzero(instance.pinned).tolist()
            if math.isfinite(instance.unit[i])
        )
        excess = self.add_column(0, math.inf, integral=False)
        total: Row = []
        for app in self.apps:
            unit = float(instance.unit[app])
            if unit <= 0:
                continue
            loss = self.add_column(0, math.inf, integral=False)
            total.append((loss, unit))
            aim = float(terms.shares[app]) / unit
            below = math.floor(aim)
            at, slope = abs(below - aim), abs(below + 1 - aim) - abs(below - aim)
            stays = abs(int(instance.count[app]) - aim) if app in self.r else 0.0
            for by, offset in ((-1.0, aim), (1.0, -aim), (slope, at - slope * below)):
                self._above(loss, app, by, offset, stays)
        scale = max((unit for _, unit in total), default=1.0)
        row = [(column, unit / scale) for column, unit in total]
        self.add_row([*row, (excess, -1.0 / scale)], upper=(terms.loss_budget - fixed) / scale)
        return excess

    def add_lack(self, app: int, floor: float) -> int:
        """Return a new column that is at least floor - n."""
        lack = self.add_column(0, math.inf, integral=False)
        self._above(lack, app, -1.0, floor, max(0.0, floor - float(self.instance.count[app])))
        return lack

    def keep_above(self, app: int, floor: float) -> None:
        """Require n ≥ floor."""
        row = [(self.n[app], 1.0)]
        was = float(self.instance.count[app])
        if app not in self.r:
            self.add_row(row, lower=floor)
        elif was < floor:
            self._lower[self.r[app]] = 1.0
            self.add_row(row, lower=floor)
        else:
            # n ≥ (1 - r) · was + r · floor
            self.add_row([*row, (self.r[app], was - floor)], lower=was)

    def _above(self, column: int, app: int, slope: float, offset: float, stays: float) -> None:
        """Require column ≥ slope · n + offset, or ≥ `stays` if the app stays: as the convex hull of the two."""
        row = [(column, 1.0), (self.n[app], -slope)]
        if app not in self.r:
            self.add_row(row, lower=offset)
            return
        was = int(self.instance.count[app])
        # (1 - r) · stays + slope · (n - (1 - r) · was) + r · offset
        self.add_row([*row, (self.r[app], stays - slope * was - offset)], lower=stays - slope * was)

    def add_positive_part(self, column: int, above: float, *, sign: int = 1) -> int:
        """Return a new column that is at least `column - above` (with sign -1, `above - column`) and at least 0."""
        part = self.add_column(0, math.inf, integral=False)
        self.add_row([(part, 1.0), (column, -float(sign))], lower=-sign * above)
        return part

    def solve(self, objective: Row) -> Solved:
        """Minimize.  If rounding shows that an answer overfills a node, solve again with slightly less room."""
        answer = self._solve(objective, 0.0)
        if answer.x is not None and self._overfull(answer.x):
            answer = self._solve(objective, MARGIN)
        return answer

    def _overfull(self, x: Ints) -> bool:
        movable: Flags = self.instance.free_to_move
        return bool((x[movable].T @ self.instance.demand[movable] > self.instance.room).any())

    def solve_below(self, objective: Row, most: float) -> Solved:
        """Like `solve`, for objectives of at most `most`: `infeasible` means that there are none."""
        self.add_row(objective, upper=most)
        answer = self.solve(objective)
        for rows in (self._rows, self._row_lower, self._row_upper):
            rows.pop()
        return answer

    def relax(self, objective: Row) -> Relaxed | None:
        """Minimize with fractions allowed.  None if there is no answer or the solver failed."""
        cost, rows = self._matrix(objective)
        matrix: Any = rows
        lower, upper = np.array(self._row_lower, np.float64), np.array(self._row_upper, np.float64)
        same = lower == upper
        below, above = ~same & np.isfinite(upper), ~same & np.isfinite(lower)
        sides: Any = {
            "A_ub": vstack([matrix[below], -matrix[above]]),
            "b_ub": np.concatenate([upper[below], -lower[above]]),
            "A_eq": matrix[same],
            "b_eq": lower[same],
            "bounds": np.column_stack([self._lower, self._upper]),
        }
        try:
            result = linprog(cost, **sides, method="highs-ds", options={"time_limit": GUARD_S})
            if int(result.status) != 0:
                return None
            x = np.asarray(result.x, np.float64)
            reduced = np.asarray(result.lower.marginals + result.upper.marginals, np.float64)
            bound = float(result.fun or 0.0)
        except Exception:  # Even if the solver fails in any way, there is an answer without this.
            return None
        sound = x.shape == cost.shape == reduced.shape and math.isfinite(bound)
        return Relaxed(bound, x, reduced) if sound and np.isfinite(x).all() and np.isfinite(reduced).all() else None

    def _matrix(self, objective: Row) -> tuple[Floats, csr_array]:
        """Return the objective as a vector, and the rows."""
        cost = np.zeros(len(self._lower))
        for column, value in objective:
            cost[column] += value
        starts = np.cumsum([0, *(len(row) for row in self._rows)])
        columns = np.array([column for row in self._rows for column, _ in row], np.int32)
        values = np.array([value for row in self._rows for _, value in row], np.float64)
        return cost, csr_array((values, columns, starts), shape=(len(self._rows), len(cost)))

    def _solve(self, objective: Row, margin: float) -> Solved:
        cost, matrix = self._matrix(objective)
        upper = np.array(self._row_upper, np.float64)
        upper[self._room_rows] *= 1.0 - margin
        try:
            result = _milp(
                cost,
                integrality=np.array(self._integral),
                bounds=Bounds(np.array(self._lower, np.float64), np.array(self._upper, np.float64)),
                constraints=LinearConstraint(matrix, np.array(self._row_lower, np.float64), upper),
                options={**self.effort, "mip_rel_gap": 0.0, "node_limit": self.node_limit, "time_limit": GUARD_S},
            )
            bound = result.mip_dual_bound
            return Solved(
                x=None if result.x is None else self._counts(np.asarray(result.x, np.float64)),
                bound=float(bound) if bound is not None and math.isfinite(bound) else -math.inf,
                status=_status(int(result.status), str(result.message)),
            )
        except Exception:  # Even if the solver fails in any way, the present answer remains, and the decision says so.
            return Solved(None, -math.inf, "failed")

    def _counts(self, values: Floats) -> Ints | None:
        """Return the counts, None if the values are not an answer."""
        if values.shape != (len(self._lower),) or not np.isfinite(values).all():
            return None
        most = np.minimum(np.array(self._upper, np.float64), integer.LARGEST)
        solution = np.rint(np.clip(values, -1.0, most + 1.0)).astype(np.int64)
        x = np.where(self.instance.pinned[:, None], self.instance.current, 0)
        for (app, node), column in self.x.items():
            x[app, node] = solution[column]
        return x


def most_with_others(instance: Instance, change_budget: int) -> Ints:
    """Return how many containers of each app each node can hold when at most `change_budget` of the apps that may stay give up
    theirs: the app itself, and those that hold most of each resource there."""
    most, kept = instance.holds.copy(), instance.kept
    if change_budget >= int(kept.sum()):
        return most
    used = instance.current[kept][:, :, None] * instance.demand[kept][:, None, :]
    free = instance.room - used.sum(axis=0)
    largest = -np.sort(-used, axis=0)[: max(change_budget, 1)]
    others = largest[:-1].sum(axis=0)
    for app in np.flatnonzero(instance.free_to_move).tolist():
        demand = instance.demand[app]
        stays = instance.current[app] if kept[app] else np.zeros(len(free), np.int64)
        given_up = others + (largest[-1] if change_budget else 0)
        if kept[app]:  # It is one of those: if it is not among the largest, it is there instead of the least of them.
            own = stays[:, None] * demand
            given_up = np.where(own >= largest[-1], given_up, others + own) if change_budget else own
        for k in np.flatnonzero(demand > 0).tolist():
            most[app] = np.minimum(most[app], np.maximum((free + given_up)[:, k] // demand[k], stays))
    return np.maximum(most, 0)


def _milp(cost: Floats, **problem: Any) -> Any:
    """Suppress scipy's warnings: it passes options that it does not know to HiGHS, and warns about each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Unrecognized options", category=RuntimeWarning)
        return milp(cost, **problem)


def moves(model: Model, *, both_ways: bool) -> Row:
    """Return one for each container that an app which ran starts on a node (and, both ways, for each that it stops)."""
    instance = model.instance
    moves: Row = []
    for (app, node), column in model.x.items():
        if instance.running[app]:
            was, gang = int(instance.current[app, node]), float(instance.gang[app])
            if was < instance.holds[app, node]:
                moves.append((model.add_positive_part(column, was), gang))
            if both_ways and was > 0:
                moves.append((model.add_positive_part(column, was, sign=-1), gang))
    return moves


def change_weight(instance: Instance) -> float:
    """Return a weight above all containers that can move."""
    movers = instance.running & instance.free_to_move
    most = np.minimum(instance.n_max, instance.holds.sum(axis=1)) + instance.current.sum(axis=1)
    return 1.0 + float((most * instance.gang)[movers].sum())


def changes(model: Model, moves: Row) -> Row:
    """Changed apps first: one weighs more than all containers that can move."""
    weight = change_weight(model.instance)
    return [*((column, weight) for column in model.r.values()), *moves]


def wishes(model: Model) -> Row:
    """Return how far apps that are placed or changed miss their wish, with a 0/1 column for each node that one of them
    uses."""
    instance = model.instance
    missed: Row = []
    for app in model.apps:
        wish = instance.apps[app].placement
        here = [(node, model.x[app, node]) for node in range(len(instance.nodes)) if (app, node) in model.x]
        if not wish or not here:
            continue
        spread = wish == "spread"
        row: Row = [(model.n[app], 1.0)] if spread else []
        for node, column in here:
            used = model.add_column(0, 1, integral=True)
            most = float(instance.holds[app, node])
            model.add_row([(column, 1.0), (used, -1.0 if spread else -most)], **{"lower" if spread else "upper": 0.0})
            row.append((used, -1.0 if spread else 1.0))
        beyond = 0.0 if spread else 1.0
        miss = model.add_column(0, math.inf, integral=False)
        free = float(instance.holds[app].sum() if spread else len(here))
        if app in model.r:
            model.add_row([*row, (miss, -1.0), (model.r[app], free)], upper=beyond + free)
        else:
            model.add_row([*row, (miss, -1.0)], upper=beyond)
        missed.append((miss, 1.0))
    return missed


def whole(cost: Floats, matrix: Any, upper: Floats, most: Floats) -> Ints | None:
    """min cost · x with matrix · x ≤ upper and 0 ≤ x ≤ most, all in whole numbers; None if nothing was found."""
    try:
        result = _milp(
            cost,
            integrality=np.ones(len(cost)),
            bounds=Bounds(np.zeros(len(cost)), most),
            constraints=LinearConstraint(matrix.tocsc(), np.full(len(upper), -np.inf), upper),
            options={**NO_SUB_PROGRAMS, "node_limit": SHORT_SEARCH, "mip_rel_gap": 0.1, "time_limit": GUARD_S},
        )
        values = np.asarray(result.x, np.float64)
    except Exception:  # Even if the solver fails in any way, there is an answer without this.
        return None
    if values.shape != cost.shape or not np.isfinite(values).all():
        return None
    return np.rint(values).astype(np.int64)


def _status(code: int, message: str) -> str:
    """scipy has no code for the limit of nodes: it passes on HiGHS's text."""
    if "Time limit" in message:
        return "guard"
    if "Solution limit" in message or "Iteration limit" in message:
        return "node_limit"
    return {0: "optimal", 2: "infeasible"}.get(code, "failed")
