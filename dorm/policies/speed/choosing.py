"""One count for each app, by a linear program over all choices: the multiple-choice knapsack problem, relaxed.

    max  Σ worth x      Σ_c x_ic = 1          for each app
                        Σ demand x ≤ room     for each kind of resource, the cluster treated as one machine
                        Σ disturbs x ≤ left   θ2
                        Σ loss x ≤ 2mθ1 + ξ   θ1, as far as it can be met; ξ and what lacks to a floor are penalized

(Sinha and Zoltners, "The Multiple-Choice Knapsack Problem", Operations Research 27, 1979.)  The choice that the draft makes
for an app is left out of the program: it is what remains of the one.  So no row is an equation, and doing nothing is a
feasible start.  A basic solution has few apps between two choices: no more than there are rows beside the first.  The
program sees no nodes; `resizing` places what it can of the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csr_array, hstack, vstack

from dorm.policies.dorm.counts import SolverFailed, solved
from dorm.policies.speed.worth import DIGITS, counts_up_to

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Floats, Instance, Ints
    from dorm.policies.scoring import Terms
    from dorm.policies.speed.worth import Worth

BELOW_FLOOR = 10.0
"""Penalty of a whole fair share below the floor, in worths of the most valuable choice."""
EXCESS = 100.0
"""Penalty of a fairness loss of 1 beyond θ1, likewise: it comes before all worth, as goal 3 does."""
LEAST_PART = 1e-6
"""Smaller parts of a choice are none."""


class Choices(NamedTuple):
    """The counts that each app may have: rows sorted by app and units."""

    app: Ints
    units: Ints
    worth: Floats
    loss: Floats
    """|s - ŝ|"""
    disturbs: Floats
    stays: Flags
    """The app keeps its containers where they are."""
    first: Ints
    """The first row of each app, and the number of rows."""
    draft: Ints
    """The rows that the draft chose, one for each app with choices."""


def choices(instance: Instance, worth: Worth, terms: Terms, n: Ints, *, exact: bool = False) -> Choices:
    """Return the choices of all apps that have a place in the draft, which gives them `n` units, and may be elsewhere.

    Where they are `exact`, every count is one, and after it to have what it has on other nodes, which costs a pause."""
    app_of: list[int] = []
    units: list[int] = []
    stays: list[bool] = []
    worths: list[Floats] = []
    draft: list[int] = []
    first = [0]
    movable = instance.free_to_move & (n >= instance.n_min)
    for i in range(len(instance.apps)):
        if movable[i]:
            least, most = int(instance.n_min[i]), max(int(instance.fits_empty[i]), int(n[i]))
            found = counts_up_to(least, most, int(worth.count[i]), int(n[i]))
            if exact:
                found = list(range(least, most + 1))
            draft.append(len(app_of) + found.index(int(n[i])))
            worths.append(worth.of(i, np.array(found, np.int64)))
            stays += [count == worth.count[i] for count in found]
            if exact and least <= worth.count[i] <= most:
                found = [*found, int(worth.count[i])]
                worths.append(np.array([worth.moved(i)]))
                stays.append(False)
            app_of += [i] * len(found)
            units += found
        first.append(len(app_of))
    app, counts = np.array(app_of, np.int64), np.array(units, np.int64)
    as_it_is = np.array(stays, np.bool_)
    unit = np.where(np.isfinite(instance.unit), instance.unit, 0.0)
    values = np.concatenate(worths) if worths else np.zeros(0)
    below = np.maximum(terms.floors[app] - counts, 0) / np.maximum(terms.floors[app], 1)
    return Choices(
        app=app,
        units=counts,
        worth=np.round(values / values.max(initial=1e-300), DIGITS) - BELOW_FLOOR * below,
        loss=np.abs(counts * unit[app] - terms.shares[app]),
        disturbs=np.where(~as_it_is & (worth.count[app] >= 0), worth.disturbs[app], 0.0),
        stays=as_it_is,
        first=np.array(first, np.int64),
        draft=np.array(draft, np.int64),
    )


def choose(
    instance: Instance, offered: Choices, left: float, loss_budget: float, fixed_loss: float
) -> tuple[Ints, Ints]:
    """Return two counts of each app in units, equal but for the few apps between two choices; 0 for apps without choices.

    `left` is what θ2 still allows, `fixed_loss` the fairness loss of apps without choices.  Raises SolverFailed."""
    apps = len(instance.apps)
    low, high = np.zeros(apps, np.int64), np.zeros(apps, np.int64)
    if not len(offered.draft):
        return low, high
    x = _solve(instance, offered, left, loss_budget - fixed_loss)
    for app in np.flatnonzero(np.diff(offered.first)).tolist():
        at = slice(int(offered.first[app]), int(offered.first[app + 1]))
        taken = offered.units[at][x[at] > LEAST_PART]
        low[app], high[app] = taken.min(), taken.max()
    return low, high


def _solve(instance: Instance, offered: Choices, left: float, loss_budget: float) -> Floats:
    """Return the part of each choice."""
    rows, base = len(offered.app), offered.draft
    of = np.zeros(len(instance.apps), np.int64)
    of[offered.app[base]] = np.arange(len(base))
    member = of[offered.app]
    totals = np.maximum(instance.totals, 1).astype(np.float64)
    used = instance.demand[offered.app] * offered.units[:, None] / totals
    limits = np.column_stack([used, offered.disturbs, offered.loss])
    rest = np.concatenate([instance.room.sum(axis=0) / totals, [max(left, 0.0), loss_budget]]) - limits[base].sum(
        axis=0
    )
    rest[:-1] = np.maximum(rest[:-1], 0.0)
    others = np.setdiff1d(np.arange(rows), base)
    change = csr_array((limits - limits[base][member])[others].T)
    one_each = csr_array(
        (np.ones(len(others)), (member[others], np.arange(len(others)))), shape=(len(base), len(others))
    )
    excess = csr_array(([-1.0], ([change.shape[0] - 1], [0])), shape=(change.shape[0] + len(base), 1))
    matrix = hstack([vstack([change, one_each]), excess], format="coo")
    gain = (offered.worth - offered.worth[base][member])[others]
    answer = solved(
        np.append(-gain, EXCESS),
        matrix,
        np.concatenate([rest, np.ones(len(base))]),
        np.append(np.ones(len(others)), np.inf),
    )
    if answer is None:
        raise SolverFailed("the program of dorm-speed is infeasible")
    x = np.zeros(rows)
    x[others] = answer[0][:-1]
    x[base] = 1.0 - np.bincount(member[others], weights=x[others], minlength=len(base))
    return x
