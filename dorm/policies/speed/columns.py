"""The program of `choosing` with few of its columns: most choices are never taken, and a proof that they are not is cheap.

    max  gain · x - EXCESS ξ      uses · x ≤ rest, the last one + ξ      Σ x ≤ 1 for each app      x ≥ 0

With few columns the program is solved in whole choices (`in_whole`): among few apps, a part of a choice is a large part of
the cluster, and rounding it leaves that part as it was.

Otherwise it is relaxed.  A column that is left out counts as 0.  The duals of the rest price every column: if none of those
that are left out gains more than it costs at these prices, the answer is that of the whole program, else those that do are
added.  (Column generation: Dantzig and Wolfe, "Decomposition Principle for Linear Programs", Operations Research 8, 1960.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array, hstack, vstack

from dorm.policies.dorm.counts import GUARD_S, SolverFailed, solved

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Floats, Ints

EXCESS = 100.0
"""Penalty of a fairness loss of 1 beyond θ1, in worths of the most valuable choice: it comes before all worth, as goal 3
does."""
FEW = 4_000
"""Number of columns below which the whole program is solved at once."""
FIRST = 2_000
"""Columns to start with, in addition to those that disturb nothing."""
SMALLEST = 1e-9
"""Smaller gains beyond the prices count as none."""
WHOLE = 1_000
"""Number of columns below which they are chosen in whole."""
GAP = 1e-4
"""The search for whole choices ends this close to the optimum, relatively."""
SEARCH = 20_000
"""Columns × nodes of that search, at most: a bound that is the same on every machine."""


def in_whole(gain: Floats, uses: Floats, member: Ints, rest: Floats, apps: int) -> Floats | None:
    """Return 1 for each column that is chosen, and 0 for the others; None if the solver finds no answer."""
    matrix = _matrix(uses, member, len(rest), apps)
    options: Any = {"node_limit": max(1, SEARCH // len(gain)), "mip_rel_gap": GAP, "time_limit": GUARD_S}
    try:
        solution = milp(
            np.append(-gain, EXCESS),
            integrality=np.append(np.ones(len(gain), np.int64), 0),
            bounds=Bounds(np.zeros(len(gain) + 1), np.append(np.ones(len(gain)), np.inf)),
            constraints=LinearConstraint(matrix.tocsc(), ub=np.concatenate([rest + SMALLEST, np.ones(apps)])),
            options=options,
        )
    except Exception:  # A solver that raises costs quality, never the round.
        return None
    if solution.x is None or not np.isfinite(solution.x).all():
        return None
    return np.asarray(np.rint(solution.x[:-1]), np.float64)


def _matrix(uses: Floats, of: Ints, rest: int, apps: int) -> coo_array:
    """Return the rows of the program: what is used, one for each app; the last column is ξ."""
    ones = csr_array((np.ones(len(of)), (of, np.arange(len(of)))), shape=(apps, len(of)))
    excess = csr_array(([-1.0], ([rest - 1], [0])), shape=(rest + apps, 1))
    return coo_array(hstack([vstack([csr_array(uses.T), ones]), excess], format="coo"))


def maximize(gain: Floats, uses: Floats, member: Ints, rest: Floats, apps: int, few: int = FEW) -> Floats:
    """Return the part of each column.

    `uses` has a row for each column and a column for each of `rest`, the last but one of which is θ2; `member` says to which
    of the `apps` a column belongs.  Raises SolverFailed."""
    taken = np.ones(len(gain), np.bool_) if len(gain) <= few else _first(gain, uses)
    while True:
        x, prices, own = _solve(gain, uses, member, rest, apps, taken)
        missing = ~taken & (gain - uses @ prices - own[member] > SMALLEST)
        if not missing.any():
            return x
        taken |= missing


def _first(gain: Floats, uses: Floats) -> Flags:
    """Return the columns that disturb nothing, and those that gain most for what they disturb."""
    disturbs = uses[:, -2]
    taken: Flags = disturbs <= 0
    each = np.round(gain / np.maximum(disturbs, SMALLEST), 12)
    taken[np.lexsort((np.arange(len(gain)), -each))[:FIRST]] = True
    return taken


def _solve(
    gain: Floats, uses: Floats, member: Ints, rest: Floats, apps: int, taken: Flags
) -> tuple[Floats, Floats, Floats]:
    """Return the parts by the program with some of the columns, the prices of the rest, and those of the apps."""
    columns = np.flatnonzero(taken)
    there = np.arange(apps) if len(columns) == len(gain) else np.unique(member[columns])
    of = np.searchsorted(there, member[columns])
    answer = solved(
        np.append(-gain[columns], EXCESS),
        _matrix(uses[columns], of, len(rest), len(there)),
        np.concatenate([rest, np.ones(len(there))]),
        np.append(np.ones(len(columns)), np.inf),
    )
    if answer is None:
        raise SolverFailed("the program of dorm-speed is infeasible")
    x, own = np.zeros(len(gain)), np.zeros(apps)
    x[columns] = answer[0][:-1]
    own[there] = answer[2][len(rest) :]
    return x, answer[2][: len(rest)], own
