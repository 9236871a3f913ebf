"""The integer program of `sia`: at most one configuration for each app, within the room of each type of nodes.

A multiple-choice knapsack problem with few knapsacks.  Its linear relaxation splits few apps between two
configurations, at most as many as there are knapsacks.  Rounding these down gives a first answer, and reduced costs
show which configurations cannot be part of a better one (Sinha and Zoltners, Operations Research 27, 1979).  The rest
is a small program for HiGHS, while a program of all configurations takes a minute for 500 apps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

if TYPE_CHECKING:
    from scipy.sparse import csc_array

    from dorm.policies.integer import Floats, Ints

GAP = 1e-4
"""The search ends this close to the optimum, relatively (`sia_solver_thresh` of Sia's public code)."""
LARGE, LARGE_GAP = 1_000, 1e-3
"""Number of columns above which a rounded answer is taken, and the gap that it may have: closing the rest takes seconds and
gives no measurable gain."""
SEARCH = 20_000
"""Columns × nodes of the solver's search, at most (one node at least)."""
GUARD_S = 300.0
"""Only a guard against crashes; the number of nodes decides when to stop, which is deterministic."""


class Rows(NamedTuple):
    """matrix · x ≤ room, with entries of at least 0: a row for each app, in order, and one for each knapsack."""

    matrix: csc_array
    room: Floats


def solve(rows: Rows, cost: Floats, app: Ints) -> tuple[Ints | None, str]:
    """Return the columns of the answer with the least cost, all costs being negative, and the status; None for no answer.

    `app` is each column's app."""
    matrix: Any = rows.matrix  # Its type only allows dense matrices.
    try:
        relaxed = linprog(
            cost, A_ub=matrix, b_ub=rows.room, bounds=(0, 1), method="highs", options={"time_limit": GUARD_S}
        )
        if relaxed.status != 0:
            return None, "fallback"
        answer = _rounded(rows, cost, app, np.asarray(relaxed.x, np.float64))
        bound, value = float(relaxed.fun or 0.0), float(cost[answer].sum())
        if value - bound <= GAP * abs(bound):
            return answer, "optimal"
        prices = np.asarray(relaxed.ineqlin.marginals, np.float64)
        reduced = cost - rows.matrix.T @ prices  # At least 0 for a column at 0, at most 0 for a column at 1.
        kept = np.flatnonzero(reduced <= value - bound + 1e-9)
        if len(kept) > LARGE and value - bound <= LARGE_GAP * abs(bound):
            return answer, "near"
        better, status = _searched(rows, cost, kept)
    except Exception:  # A solver that raises costs quality, never the round.
        return None, "fallback"
    if better is None or float(cost[better].sum()) > value:
        return answer, status
    return better, status


def _searched(rows: Rows, cost: Floats, kept: Ints) -> tuple[Ints | None, str]:
    options: Any = {"mip_rel_gap": GAP, "node_limit": max(1, SEARCH // len(kept)), "time_limit": GUARD_S}
    whole: Any = np.ones(len(kept), np.int64)
    constraint = LinearConstraint(rows.matrix[:, kept], ub=rows.room)
    result = milp(cost[kept], constraints=constraint, bounds=Bounds(0, 1), integrality=whole, options=options)
    status = "optimal" if int(result.status) == 0 else "guard" if "Time limit" in result.message else "node_limit"
    if result.x is None or not np.isfinite(result.x).all():
        return None, status
    return kept[np.flatnonzero(np.rint(result.x) > 0)], status


def _rounded(rows: Rows, cost: Floats, app: Ints, x: Floats) -> Ints:
    """Return the columns that are whole, and for each further app the best column that fits next to them; then, as long as one
    fits, the column that improves most on its app's."""
    matrix = rows.matrix
    knapsacks = slice(len(np.unique(app)), None)  # The first rows say that each app has one column.
    needs = matrix[knapsacks].toarray().T
    chosen = {int(app[column]): column for column in np.flatnonzero(x > 1 - 1e-6).tolist()}
    left = np.asarray(rows.room, np.float64)[knapsacks] - needs[list(chosen.values())].sum(axis=0)
    while True:
        has = np.array([chosen.get(app_, -1) for app_ in app.tolist()], np.int64)
        gain = np.where(has >= 0, cost[has], 0.0) - cost
        more = needs - np.where((has >= 0)[:, None], needs[has], 0.0)
        fits = (more <= left + 1e-9).all(axis=1) & (gain > 1e-12)
        if not fits.any():
            return np.array(sorted(chosen.values()), np.int64)
        best = int(np.argmax(np.where(fits, np.round(gain, 12), -np.inf)))
        left = left - more[best]
        chosen[int(app[best])] = best
