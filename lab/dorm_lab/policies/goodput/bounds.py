"""The bounds of an app under both policies: how many containers it may have, and the cost of a restart in goodput."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.policies.integer import MOST_WEIGHT
from dorm.policies.speed.tuning import MOST_COUNT, per_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Floats, Instance
    from dorm.policies.problem import AppDemand

LEAST_WEIGHT = 1e-4
"""The smallest weight of an app, as a part of the largest."""
EXPLORES = 2
"""An app gets at most this many times the containers that it was tried with."""


def per_nodes(instance: Instance) -> list[int]:
    """Return `per_node` of each app; apps with the same demand, requirement and bound are alike."""
    seen: dict[tuple[bytes, int, int], int] = {}
    bounds = []
    for app, demand in enumerate(instance.demand):
        key = (demand.tobytes(), int(instance.requirement[app]), int(instance.n_max[app]))
        if key not in seen:
            seen[key] = per_node(instance, app)
        bounds.append(seen[key])
    return bounds


def most_units(instance: Instance, app: int) -> int:
    """Return the most units that the app may have: by its bounds, by the cluster, and by the containers that it was tried
    with."""
    most = min(int(instance.fits_empty[app]), max(int(instance.n_min[app]), MOST_COUNT))
    tried = instance.apps[app].tried // int(instance.gang[app])
    if tried > 0:
        most = min(most, max(EXPLORES * tried, int(instance.n_min[app])))
    return most


def restart_factor(app: AppDemand, usual_s: float) -> float:
    """Return (T - R δ) / (T + δ), between 0 and 1."""
    cost = usual_s if app.adjust_s is None or not 0 <= app.adjust_s < 1e9 else app.adjust_s
    age = min(max(app.age_s, 0.0), 1e12)
    return min(max(age - app.adjustments * cost, 0.0) / (age + cost), 1.0) if age + cost > 0 else 1.0


def relative_weights(apps: Sequence[AppDemand]) -> Floats:
    """Return the apps' weights as parts of the largest, at least `LEAST_WEIGHT`: only their ratio matters."""
    weights = np.array([app.weight for app in apps], np.float64)
    weights = np.nan_to_num(np.minimum(weights, MOST_WEIGHT), nan=0.0)
    return np.asarray(np.maximum(weights / max(float(weights.max(initial=0.0)), 1e-300), LEAST_WEIGHT))
