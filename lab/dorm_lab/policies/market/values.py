"""The worth of each class of nodes to each app of a problem.

Nodes of one class are alike (capacity, type, and which apps may use them), so each app bids the same for all of them, and a
class can be treated as one large machine: the equilibrium is the same.  Worth is the number of the app's containers
that the class would hold, times their speed there relative to its fastest type of node, as a part of the worth of the
whole cluster to it: so a utility of 1 is the whole cluster, and with equal weights the game is the paper's balanced
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies import integer
from dorm.policies.classes import classes
from dorm_lab.policies.baselines import speeds

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Instance, Ints


LIGHTEST = 1e-6
"""Budgets below this part of the largest are raised to it."""


class Values(NamedTuple):
    """Apps as rows, classes as columns."""

    of: Ints
    """The class of each node."""
    holds: Floats
    """Units of the app that the whole class holds next to pinned apps."""
    worth: Floats
    """w_ij; rows of apps that cannot move, or cannot use the cluster, are 0."""


def values(instance: Instance) -> Values:
    kinds = sorted({node.type for node in instance.node_rooms})
    place = {kind: j for j, kind in enumerate(kinds)}
    kind_of = np.array([place[node.type] for node in instance.node_rooms], np.int64)
    groups = classes(np.hstack([instance.room, instance.eligible.T.astype(np.int64), kind_of[:, None]]))
    room = instance.room[groups.first]
    holds = np.zeros((len(instance.apps), len(groups.first)))
    worth = np.zeros_like(holds)
    for i in np.flatnonzero(instance.free_to_move & (instance.worth > 0)).tolist():
        needed = instance.demand[i] > 0
        each = np.maximum((room[:, needed] // instance.demand[i][needed]).min(axis=1), 0) * groups.size
        holds[i] = np.where(instance.eligible[instance.requirement[i]][groups.first], each, 0)
        worth[i] = holds[i] * _relative(instance, i, kinds)[kind_of[groups.first]]
        worth[i] /= max(float(worth[i].sum()), 1e-300)
    return Values(groups.of, holds, worth)


def _relative(instance: Instance, app: int, kinds: list[str]) -> Floats:
    """Return the speed on each type against the fastest, with as few containers as the app may have; 1 if unknown."""
    each = instance.apps[app]
    if not each.speed_on:
        return np.ones(len(kinds))
    count = int(instance.n_min[app] * instance.gang[app])
    curves = [speeds.speed(each, kind) for kind in kinds]
    rates = np.array([curve.one(count) if curve.known else np.nan for curve in curves])
    fastest = float(np.nanmax(rates)) if np.isfinite(rates).any() else 1.0
    return np.nan_to_num(rates / fastest, nan=1.0)


def budgets(instance: Instance) -> Floats:
    """Return each app's weight as a part of the largest; an app without weight bids almost nothing."""
    weights = np.nan_to_num([app.weight for app in instance.apps], nan=0.0, posinf=integer.MOST_WEIGHT)
    heaviest = float(weights.max(initial=0.0)) or 1.0
    return np.asarray(np.clip(weights / heaviest, LIGHTEST, 1.0))
