"""The quality of any policy's answer as a division of nodes among apps: efficiency, utility uniformity, envy-freeness.

The measures are those of the paper (`game.Measures`), for apps as they are here:

* The utility of an app is the worth of its containers, as a part of the worth of the whole cluster to it (`values`).
* Efficiency is relative to the largest sum of utilities with arbitrarily divisible containers, within each node's
  resources and each app's n_max: a linear program.
* An app envies another if the other's resources, on their nodes, would be worth more to it: 0 below its n_min, and nothing
  beyond its n_max.  So an app at its n_max envies no other, and a waiting app envies every app in whose place it could
  run.
* Uniformity is the least utility of an app below its n_max, relative to the largest of all.  Weights are budgets:
  others' resources are compared per unit of budget.

The paper's fairness is that of the worst app, which is 0 if any app has to wait.  So the part of the apps that envy
nobody by more than the paper's equilibria allow is measured as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from dorm.policies import integer
from dorm_lab.policies.market.values import budgets, values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.integer import Floats, Instance, Ints
    from dorm.policies.problem import Problem


BOUND = 2 * math.sqrt(2) - 2
"""The envy-freeness of every equilibrium with equal budgets (Zhang, ICALP 2005): 0.828."""


class Division(NamedTuple):
    """The measures of one answer, each between 0 and 1, 1 at best."""

    efficiency: float
    uniformity: float
    envy_freeness: float
    content: float
    """The part of the apps whose own envy-freeness is at least `BOUND`."""


def measured(problem: Problem, counts: Mapping[str, Mapping[str, int]]) -> Division:
    """Return the measures of an answer, including apps in the middle of an adjustment."""
    apps = tuple(msgspec.structs.replace(app, pinned=False) for app in problem.apps)
    instance = integer.read(msgspec.structs.replace(problem, apps=apps))
    known = values(instance)
    each = np.divide(known.worth, known.holds, out=np.zeros_like(known.worth), where=known.holds > 0)
    given = _given(instance, known.of, known.holds.shape[1], counts)
    utility = (given * each).sum(axis=1)
    best = _optimum(instance, known.of, each)
    able = instance.possible & (known.worth.sum(axis=1) > 0)
    wants = able & (given.sum(axis=1) < instance.n_max)
    paid = utility / budgets(instance)
    envy = [_against_others(instance, given, each, app) for app in np.flatnonzero(wants).tolist()]
    return Division(
        efficiency=float(utility.sum()) / best if best > 0 else 1.0,
        uniformity=float(paid[wants].min() / paid[able].max()) if wants.any() and paid[able].max() > 0 else 1.0,
        envy_freeness=min(envy, default=1.0),
        content=1.0 - sum(ratio < BOUND for ratio in envy) / max(int(able.sum()), 1),
    )


def _given(instance: Instance, of: Ints, classes: int, counts: Mapping[str, Mapping[str, int]]) -> Floats:
    """Return units by app and class of nodes."""
    column = {name: j for j, name in enumerate(instance.nodes)}
    given = np.zeros((len(instance.apps), classes))
    for i, app in enumerate(instance.apps):
        for node, count in counts.get(app.id, {}).items():
            if node in column:
                given[i, of[column[node]]] += count / int(instance.gang[i])
    return given


def _against_others(instance: Instance, given: Floats, each: Floats, app: int) -> float:
    """Return its utility over the largest that what another has would give it; 1 if it envies nobody."""
    needed = instance.demand[app] > 0
    resources = given[:, :, None] * instance.demand[:, None, needed]
    would = (resources / instance.demand[app][needed]).min(axis=2)
    total = would.sum(axis=1)
    useful = np.where(total >= instance.n_min[app], np.minimum(total, instance.n_max[app]), 0.0)
    would *= np.divide(useful, total, out=np.zeros(len(total)), where=total > 0)[:, None]
    own = budgets(instance)
    envied = float(((would @ each[app]) * own[app] / own).max())
    worth = float(given[app] @ each[app])
    return min(1.0, worth / envied) if envied > 0 else 1.0


def _optimum(instance: Instance, of: Ints, each: Floats) -> float:
    """Return the largest sum of utilities of divisible containers; 0 if the solver fails."""
    app, kind = np.nonzero(each)
    if not len(app):
        return 0.0
    classes, resources = each.shape[1], instance.room.shape[1]
    room = np.zeros((classes, resources))
    np.add.at(room, of, instance.room)
    scale = np.maximum(room, 1.0)
    columns = np.arange(len(app))
    rows = [kind * resources + k for k in range(resources)]
    used = [instance.demand[app, k] / scale[kind, k] for k in range(resources)]
    matrix: Any = coo_array(
        (
            np.concatenate([*used, np.ones(len(app))]),
            (np.concatenate([*rows, classes * resources + app]), np.tile(columns, resources + 1)),
        ),
        shape=(classes * resources + len(instance.apps), len(app)),
    ).tocsc()
    right = np.concatenate([(room / scale).ravel(), instance.n_max.astype(np.float64)])
    solved = linprog(-each[app, kind], A_ub=matrix, b_ub=right, bounds=(0, None), method="highs")
    return -float(solved.fun or 0.0) if solved.status == 0 else 0.0
