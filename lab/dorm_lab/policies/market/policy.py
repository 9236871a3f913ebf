"""The policy `market`: apps split their budgets into bids for nodes, and get parts of nodes in proportion.

`game` is the market of Feldman, Lai and Zhang (EC 2005), and finds its equilibrium; `values` computes the worth of nodes to
apps.  An app's budget is its weight, all of which it spends at each decision.

The paper divides machines as finely as wanted, and users want as much as possible.  This policy adds:

* Containers are whole, and an app has n_min to n_max of them or none.  Its part at the equilibrium, in containers, is a
  target t: everyone gets n_min, those that run first, then by arrival; then one container after the other goes to the app
  with the lowest n / t.  So containers that an app with a small n_max does not use go to the others in proportion to
  their targets.
* A part of a node in each of its resources is worth as many containers as the scarcest of them holds.  The other resources
  of that part would be idle; the filling gives them to those that can use them.
* Containers go to the classes of nodes on which the app won, as many as it won there; those that do not fit go
  anywhere.  An app whose count stays is not moved, even if its parts have changed.

No app is stopped.  `answers.measured` returns the efficiency, the utility uniformity and the envy-freeness of an answer of
any policy; `dorm bench optimizer` shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.policies import answer, integer, laboratory
from dorm.policies.baselines import drf, elastic
from dorm.policies.problem import Reason
from dorm_lab.policies.market.game import equilibrium
from dorm_lab.policies.market.values import budgets, values

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Instance
    from dorm.policies.problem import Allocation, Problem


TURNS = 12
"""The maximum number of turns, because a decision has to be quick: hundreds of apps are close to their equilibrium then."""


class MarketPolicy:
    """It has no parameters: budgets are the apps' weights."""

    name = "market"
    version = 1

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        self.check_params(params)
        instance = integer.read(problem)
        known = values(instance)
        won = known.holds * equilibrium(known.worth, budgets(instance), turns=TURNS).parts
        target = np.maximum(won.sum(axis=1), 1e-12)

        def level(app: int, n: int) -> float:
            return float(f"{n / target[app]:.9g}")

        def nodes(app: int) -> list[tuple[Flags, int]]:
            best = [kind for kind in np.argsort(-won[app], kind="stable").tolist() if won[app, kind] >= 0.5]
            return [(known.of == kind, round(float(won[app, kind]))) for kind in best]

        packing = elastic.place(instance, drf.fill(instance, level), level, nodes if won.shape[1] > 1 else None)
        reasons = drf.explain(instance, packing, "apps that came first hold the room for its n_min")
        for i, app in enumerate(instance.apps):
            if app.id in reasons and packing.rows[i] and reasons[app.id].code == "resources":
                reasons[app.id] = _bought(instance, i, float(won[i].sum()))
        return answer.by_rule(instance, packing.rows, reasons)


def _bought(instance: Instance, app: int, won: float) -> Reason:
    containers = won * int(instance.gang[app])
    return Reason("budget", f"its budget buys {containers:.3g} containers at the prices that all bids make")
