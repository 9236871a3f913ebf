"""The fixed-budget resource allocation game, alone: best responses, their equilibrium, and measures of a division.

Feldman, Lai, Zhang, "A Price-Anticipating Resource Allocation Mechanism for Distributed Shared Clusters", EC 2005 (arXiv
cs/0502019), and the same authors' "The Proportional-Share Allocation Market for Computational Resources", IEEE TPDS 20(8),
2009.

User i has the budget X_i and bids x_ij for machine j. The price of the machine is the sum of the bids Y_j, and the user
gets the part r_ij = x_ij / Y_j of it. A machine is worth w_ij to a user who has all of it, so the utility is U_i = Σ_j w_ij
r_ij. A user anticipates that its own bid raises the price.

A Nash equilibrium exists where at least two users want each machine ("strongly competitive"). Where only one does, any bid
wins all of the machine and none is best: so there is a bid of nobody, `RESERVE`, on each machine, which is worth nothing to
anyone.

Equilibria are found by best responses in turn, as in the paper's simulations, which converge in a few turns. Users here
start by bidding in proportion to w, in the order in which they are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RESERVE = 1e-9
"""A bid of nobody on each machine, as a part of all budgets."""
CLOSE = 1e-6
"""Bids that change by less than this part of the user's budget have converged."""
MOST_TURNS = 100


class Market(NamedTuple):
    """Bids and what they buy; users as rows, machines as columns."""

    bids: Floats
    parts: Floats
    """r_ij"""
    turns: int
    """How many times all users have answered."""
    converged: bool


class Measures(NamedTuple):
    """How good a division is, each between 0 and 1, 1 at best (EC 2005, §2)."""

    efficiency: float
    """Σ U_i over the most that any division reaches, in which each machine goes to the user to whom it is worth most."""
    uniformity: float
    """min U_i / max U_i."""
    envy_freeness: float
    """The least, over pairs of users, of what one's own part is worth to it over what the other's part would be; at most 1."""


def best_response(worth: Floats, others: Floats, budget: float) -> Floats:
    """Return the bids that maximize Σ_j w_j x_j / (x_j + y_j), given the others' bids y on each machine, all positive.

    The paper's algorithm (EC 2005, §3.1): at the optimum w_j y_j / (x_j + y_j)² is equal wherever x_j > 0.  So machines
    are sorted by w_j / y_j, and for the first k of them

        x_j = sqrt(w_j y_j) / Σ_{l ≤ k} sqrt(w_l y_l) · (X + Σ_{l ≤ k} y_l) - y_j

    with the largest k for which the last is not negative."""
    bids = np.zeros(len(worth))
    order = np.argsort(-worth / others, kind="stable")
    order = order[worth[order] > 0]
    if not len(order) or budget <= 0:
        return bids
    root, taken = np.sqrt(worth[order] * others[order]), others[order]
    scale = (budget + np.cumsum(taken)) / np.cumsum(root)
    most = int(np.flatnonzero(root * scale - taken >= 0)[-1]) if (root * scale - taken >= 0).any() else 0
    bids[order[: most + 1]] = np.maximum(root[: most + 1] * scale[most] - taken[: most + 1], 0.0)
    return bids


def equilibrium(worth: Floats, budgets: Floats) -> Market:
    """Return the equilibrium that best responses in turn reach."""
    total = np.maximum(worth.sum(axis=1), 1e-300)
    bids = worth / total[:, None] * budgets[:, None]
    price = bids.sum(axis=0) + RESERVE * max(float(budgets.sum()), 1e-300)
    turns, moved = 0, np.inf
    while moved > CLOSE and turns < MOST_TURNS:
        moved = 0.0
        for user in np.flatnonzero(budgets > 0).tolist():
            others = np.maximum(price - bids[user], RESERVE * float(budgets.sum()))
            answer = best_response(worth[user], others, float(budgets[user]))
            moved = max(moved, float(np.abs(answer - bids[user]).max(initial=0.0)) / float(budgets[user]))
            bids[user], price = answer, others + answer
        price = bids.sum(axis=0) + RESERVE * max(float(budgets.sum()), 1e-300)
        turns += 1
    return Market(bids, bids / price, turns, moved <= CLOSE)


def measures(worth: Floats, parts: Floats) -> Measures:
    """Return the measures of any division of the machines, users without any worth left out."""
    sense = worth.sum(axis=1) > 0
    worth, parts = worth[sense], parts[sense]
    if not len(worth):
        return Measures(1.0, 1.0, 1.0)
    of_all = worth @ parts.T
    own = np.diag(of_all)
    most = float(own.max())
    envied = np.divide(own[:, None], of_all, out=np.full(of_all.shape, np.inf), where=of_all > 0)
    return Measures(
        efficiency=float(own.sum() / worth.max(axis=0).sum()),
        uniformity=float(own.min() / most) if most > 0 else 1.0,
        envy_freeness=min(1.0, float(envied.min())),
    )
