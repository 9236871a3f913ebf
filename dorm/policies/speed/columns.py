"""The program of `choosing` with few of its columns: most choices are never taken, and a proof that they are not is cheap.

    max  gain · x - EXCESS ξ      uses · x ≤ rest, the last one + ξ      Σ x ≤ 1 for each app      x ≥ 0

A column that is left out counts as 0.  The duals of the rest price every column: where none of those that are left out gains
more than it costs at these prices, the answer is that of the whole program, else those that do are added.  (Column generation:
Dantzig and Wolfe, "Decomposition Principle for Linear Programs", Operations Research 8, 1960.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array, csr_array, hstack, vstack

from dorm.policies.dorm.counts import SolverFailed, solved

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Floats, Ints

EXCESS = 100.0
"""Penalty of a fairness loss of 1 beyond θ1, in worths of the most valuable choice: it comes before all worth, as goal 3
does."""
FEW = 4_000
"""With fewer columns the whole program is solved at once."""
FIRST = 2_000
"""Columns to start with, beside those that disturb nothing."""
SMALLEST = 1e-9
"""Gains beyond the prices that are smaller are none."""


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
    ones = csr_array((np.ones(len(columns)), (of, np.arange(len(columns)))), shape=(len(there), len(columns)))
    excess = csr_array(([-1.0], ([len(rest) - 1], [0])), shape=(len(rest) + len(there), 1))
    matrix = coo_array(hstack([vstack([csr_array(uses[columns].T), ones]), excess], format="coo"))
    answer = solved(
        np.append(-gain[columns], EXCESS),
        matrix,
        np.concatenate([rest, np.ones(len(there))]),
        np.append(np.ones(len(columns)), np.inf),
    )
    if answer is None:
        raise SolverFailed("the program of dorm-speed is infeasible")
    x, own = np.zeros(len(gain)), np.zeros(apps)
    x[columns] = answer[0][:-1]
    own[there] = answer[2][len(rest) :]
    return x, answer[2][: len(rest)], own
