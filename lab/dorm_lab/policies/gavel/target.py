"""The target of `gavel`: which part of its time each app should spend on each type of node.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020, §3.1 and §4.1,
the max-min fairness (LAS) policy as a linear program.  X_mj is the part of its time that app m runs on type j, with s_m
containers (its scale factor), at T_mj steps per second:

    max_X  min_m  (1 / w_m) · throughput(m, X) / throughput(m, X_equal) · s_m        throughput(m, X) = Σ_j T_mj X_mj
    Σ_j X_mj ≤ 1                     for each app
    Σ_m s_m d_mk X_mj ≤ C_jk         for each type and kind of resource (the paper has one: accelerators)

X_equal spends time on the types in proportion to how many of its containers they hold, as the paper's public code
(`ProportionalPolicy` in `scheduler/policies/proportional.py` of stanford-futuredata/gavel; older versions of that code solve
the same program for equal speeds instead).  The objective and the constraints are those of `max_min_fairness.py` there.

The least throughput alone leaves the others open.  A small term for all of them (`REST`) makes the rest of the cluster
useful; the paper does this for its hierarchical policies by water filling (§4.3), and leaves it to the mechanism here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Ints

REST = 1e-4
"""Weight of the mean of all throughputs relative to the least."""
RANGE = 1e6
"""Weights and speeds further apart than this are clipped, so that the program can be solved."""
DIGITS = 9


def target(speed: Floats, count: Ints, weight: Floats, demand: Ints, capacity: Ints, holds: Ints) -> Floats | None:
    """Return X; None if the solver failed.

    `speed` has apps as rows and types as columns, 0 if the app cannot run; `demand` is the demand of one container,
    `capacity` the capacity of each type, and `holds` how many containers of an app each type holds when it is empty."""
    apps, types = speed.shape
    runs = speed > 0
    if not runs.any():
        return np.zeros((apps, types))
    row = runs.any(axis=1)
    value = _values(speed, count, weight, holds)
    app, kind = np.nonzero(runs)
    least = len(app)
    worth = np.zeros(least + 1)
    worth[:least] = REST * value[app, kind] / row.sum()
    worth[least] = 1.0
    index = np.cumsum(row) - 1
    columns = np.arange(least)
    # Rows: each app's least throughput, each app's time, and the room of each type.
    room = capacity.shape[1]
    used = demand[app] * count[app, None] / np.maximum(capacity[kind], 1)
    blocks = [
        (index[app], columns, -value[app, kind]),
        (np.arange(row.sum()), np.full(row.sum(), least), np.ones(row.sum())),
        (row.sum() + index[app], columns, np.ones(least)),
        *((2 * row.sum() + kind * room + k, columns, used[:, k]) for k in range(room)),
    ]
    rows, places, entries = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    height = 2 * int(row.sum()) + types * room
    right = np.concatenate([np.zeros(row.sum()), np.ones(height - row.sum())])
    matrix: Any = coo_array((entries, (rows, places)), shape=(height, least + 1)).tocsc()
    try:
        solved = linprog(-worth, A_ub=matrix, b_ub=right, bounds=(0, None), method="highs-ds")
    except ValueError:
        return None
    solution = np.asarray(solved.x, np.float64)
    if solved.status != 0 or solution.shape != worth.shape or not np.isfinite(solution).all():
        return None
    x = np.zeros((apps, types))
    x[app, kind] = np.round(np.clip(solution[:least], 0.0, 1.0), DIGITS)
    return x


def _values(speed: Floats, count: Ints, weight: Floats, holds: Ints) -> Floats:
    """Return how much a whole unit of time on each type adds to the app's normalized throughput."""
    fastest = np.maximum(speed.max(axis=1), 1e-300)
    relative = np.where(speed > 0, np.maximum(speed / fastest[:, None], 1 / RANGE), 0.0)
    part = np.where(speed > 0, holds, 0).astype(np.float64)
    part /= np.maximum(part.sum(axis=1), 1.0)[:, None]
    equal = np.maximum((relative * part).sum(axis=1), 1e-12)
    heaviest = float(weight.max(initial=0.0)) or 1.0
    bounded = np.clip(weight / heaviest, 1 / RANGE, 1.0)
    # Only ratios matter: the largest value is 1.
    value = relative * (count / (bounded * equal))[:, None]
    return np.asarray(value / value.max())
