"""The policy `dorm-speed-exact`: what `dorm-speed` approximates, as one mixed-integer program over counts and nodes.

    max  Σ worth y - floors - excess      y_ic = 1 if app i has count c; one count each, and "as it is" is one of them
                                          Σ_j x_ij = Σ_c c y_ic       x_ij containers of i on node j
                                          Σ_i demand_i x_ij <= room_j
                                          θ1 and θ2 as in `choosing`

It includes the nodes, so nothing has to be placed afterwards.  It takes the speed on as few nodes as possible for granted:
what an app loses across nodes counts only where its answer is compared with that of `dorm-speed`.  Which apps run is decided
as for `dorm-speed`.  It is the reference that tests compare `dorm-speed` with: small clusters only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from dorm.policies import integer
from dorm.policies.exact.model import GUARD_S
from dorm.policies.speed.choosing import choices
from dorm.policies.speed.columns import EXCESS
from dorm.policies.speed.policy import Round, SpeedPolicy

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Rows
    from dorm.policies.scoring import Terms
    from dorm.policies.speed.locality import Locality
    from dorm.policies.speed.worth import Worth

NODE_LIMIT = 20_000
"""Nodes of the search tree: a bound that is the same on every machine."""
GAP = 1e-7
"""Relative."""


class ExactSpeedPolicy(SpeedPolicy):
    """Parameters: those of `dorm-speed`."""

    name = "dorm-speed-exact"
    version = 6

    def _round(self, instance: integer.Instance, settings: dict[str, float], locality: Locality) -> Round:
        return ExactRound(instance, settings, locality)


class ExactRound(Round):
    """One problem's answer by the whole program; that of `dorm-speed` remains if the solver finds none, or no better one."""

    def improved(self, served: Rows, terms: Terms, worth: Worth, closed: Flags | None) -> Rows:
        near = super().improved(served, terms, worth, closed)
        solution = Program(self.instance, served, terms, worth, closed).solve()
        if solution is None:
            self.status = "node_limit"
            return near
        rows, proven = solution
        self.status = "optimal" if proven else "node_limit"
        return rows if self.standing(rows, terms, worth) >= self.standing(near, terms, worth) else near


class Program:
    """The program for apps that were served and may change; all others stay as they are."""

    def __init__(
        self, instance: integer.Instance, served: Rows, terms: Terms, worth: Worth, closed: Flags | None
    ) -> None:
        self.instance, self.served = instance, served
        n = integer.counts_of(served)
        self.offered = choices(instance, worth, terms, served, exact=True)
        self.types = worth.types
        fixed = np.diff(self.offered.first) == 0
        self.apps = np.flatnonzero(~fixed).tolist()
        changed = integer.changed(instance, served) & instance.kept
        self.left = max(0.0, terms.change_budget - float(worth.disturbs[changed].sum()))
        unit = np.where(np.isfinite(instance.unit), instance.unit, 0.0)
        self.loss_budget = terms.loss_budget - float(np.abs(n * unit - terms.shares)[fixed].sum())
        rest = [row if fixed[app] else {} for app, row in enumerate(served)]
        self.room = np.maximum(integer.free_room(instance, rest), 0)
        self.cells = self._cells(closed)

    def solve(self) -> tuple[Rows, bool] | None:
        """Return the rows and whether they are proven to be optimal; None if the solver found none."""
        offered, many = self.offered, len(self.offered.app)
        width = many + len(self.cells) + 1
        cost, upper, whole = np.zeros(width), np.ones(width), np.ones(width, np.int64)
        cost[:many], cost[-1] = -offered.worth, EXCESS
        upper[many:-1] = [self._most(app, node) for app, node in self.cells]
        upper[-1], whole[-1] = np.inf, 0
        result = milp(
            cost,
            integrality=whole,
            bounds=Bounds(np.zeros(width), upper),
            constraints=self._constraints(width),
            options={"node_limit": NODE_LIMIT, "mip_rel_gap": GAP, "time_limit": GUARD_S},
        )
        if result.x is None:
            return None
        rows = [dict(row) for row in self.served]
        for app in self.apps:
            rows[app] = {}
        for i, (app, node) in enumerate(self.cells):
            if (count := round(float(result.x[many + i]))) > 0:
                rows[app][node] = count
        return rows, result.status == 0

    def _cells(self, closed: Flags | None) -> list[tuple[int, int]]:
        instance, cells = self.instance, []
        for app in self.apps:
            usable = instance.eligible[instance.requirement[app]]
            if closed is not None:
                usable = usable & ~closed
            nodes = {*np.flatnonzero(usable).tolist(), *self.served[app]}
            cells += [(app, node) for node in sorted(nodes)]
        return cells

    def _most(self, app: int, node: int) -> int:
        demand = self.instance.demand[app]
        needed = demand > 0
        most = int(self.instance.n_max[app])
        return min(int((self.room[node][needed] // demand[needed]).min()), most) if needed.any() else most

    def _constraints(self, width: int) -> LinearConstraint:
        offered, instance, many = self.offered, self.instance, len(self.offered.app)
        rows: list[tuple[dict[int, float], float, float]] = []
        cells: dict[int, list[tuple[int, int]]] = {app: [] for app in self.apps}
        for i, (app, node) in enumerate(self.cells):
            cells[app].append((many + i, node))
        for app in self.apps:
            own = range(int(offered.first[app]), int(offered.first[app + 1]))
            rows.append((dict.fromkeys(own, 1.0), 1.0, 1.0))
            counted = {row: -float(offered.units[row]) for row in own}
            rows.append(({**counted, **{cell: 1.0 for cell, _ in cells[app]}}, 0.0, 0.0))
            for row in own:
                if offered.stays[row]:
                    here = self.served[app]
                    rows += [
                        ({cell: 1.0, row: -float(here[node])}, 0.0, np.inf) for cell, node in cells[app] if node in here
                    ]
            rows += self._bound(cells[app], own)
        for node in range(len(instance.nodes)):
            for k in range(len(instance.kinds)):
                used = {
                    many + i: float(instance.demand[app][k])
                    for i, (app, where) in enumerate(self.cells)
                    if where == node and instance.demand[app][k]
                }
                if used:
                    rows.append((used, -np.inf, float(self.room[node][k])))
        rows.append((dict(enumerate(offered.disturbs.tolist())), -np.inf, self.left + 1e-9))
        rows.append(({**dict(enumerate(offered.loss.tolist())), width - 1: -1.0}, -np.inf, self.loss_budget))
        return _linear(rows, width)

    def _bound(self, cells: list[tuple[int, int]], own: range) -> list[tuple[dict[int, float], float, float]]:
        """Return the constraint that an app to which types matter has nothing on types that its choice does not allow."""
        offered, bounds = self.offered, []
        if self.types is None or offered.pace[own[0]] is None:
            return []
        for cell, node in cells:
            most = float(max(offered.units[own.start : own.stop]))
            here = 1 << int(self.types.of[node])
            bounds.append(({cell: 1.0, **{row: -most for row in own if offered.allowed[row] & here}}, -np.inf, 0.0))
        return bounds


def _linear(rows: list[tuple[dict[int, float], float, float]], width: int) -> LinearConstraint:
    entries = [(i, j, value) for i, (row, *_) in enumerate(rows) for j, value in row.items()]
    places: Any = ([i for i, *_ in entries], [j for _, j, _ in entries])
    matrix = csr_array(([value for *_, value in entries], places), shape=(len(rows), width))
    return LinearConstraint(matrix, np.array([low for _, low, _ in rows]), np.array([high for *_, high in rows]))
