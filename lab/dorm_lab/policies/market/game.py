"""The fixed-budget resource allocation game, alone: best responses, their equilibrium, and measures of a division.

Feldman, Lai, Zhang, "A Price-Anticipating Resource Allocation Mechanism for Distributed Shared Clusters", EC 2005 (arXiv
cs/0502019), and the same authors' "The Proportional-Share Allocation Market for Computational Resources", IEEE TPDS 20(8),
2009.

User i has the budget X_i and bids x_ij for machine j.  The price of the machine is the sum of the bids Y_j, and the user
gets the part r_ij = x_ij / Y_j of it.  A machine is worth w_ij to a user who has all of it, so the utility is U_i = Σ_j
w_ij r_ij.  A user anticipates that its own bid raises the price.

A Nash equilibrium exists if at least two users want each machine ("strongly competitive").  If only one does, any bid
wins all of the machine and none is best: so there is a reserve bid, `RESERVE`, on each machine, which belongs to no user.

Equilibria are found by best responses in turn, in the order in which the users are given, which start by bidding in
proportion to w.  In the paper's simulations of many users this converges in a few turns.  With few users whose valuations
differ much, it can oscillate (three in ten of our random games), so a user moves only a part of the way to its best response,
less in later turns (`_step`).  The paper leaves open when it counts as converged; see `CLOSE`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RESERVE = 1e-9
"""The reserve bid on each machine, as a part of all budgets."""
CLOSE = 1e-3
"""The game has converged once no user gains more than this part of its utility by another answer."""
MOST_TURNS = 200


class Market(NamedTuple):
    """Bids and the parts that they buy; users as rows, machines as columns."""

    bids: Floats
    parts: Floats
    """r_ij"""
    turns: int
    """Number of times that all users have answered."""
    converged: bool


class Measures(NamedTuple):
    """Measures of a division, each between 0 and 1, 1 at best (EC 2005, §2).

    The paper's fairness is about equal budgets.  With unequal budgets, users compare their resources per unit of
    budget."""

    efficiency: float
    """Σ U_i over the most that any division reaches, in which each machine goes to the user to whom it is worth most."""
    uniformity: float
    """min U_i / max U_i."""
    envy_freeness: float
    """The least ratio, over pairs of users, of the worth of a user's own part to the worth of the other's part for the
    same user; at most 1."""


def best_response(worth: Floats, others: Floats, budget: float) -> Floats:
    """Return the bids that maximize Σ_j w_j x_j / (x_j + y_j), given the others' bids y on each machine, all positive.

    The paper's algorithm (EC 2005, §3): at the optimum w_j y_j / (x_j + y_j)² is equal wherever x_j > 0.  So machines
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


def _step(turn: int) -> float:
    """Return how far a user moves towards its best response: all the way in the first turn."""
    return max(1.0 / (1.0 + turn / 4.0), 0.2)


def equilibrium(worth: Floats, budgets: Floats, close: float = CLOSE, turns: int = MOST_TURNS) -> Market:
    """Return the equilibrium that best responses in turn reach, up to `close`, within this many turns."""
    reserve = RESERVE * max(float(budgets.sum()), 1e-300)
    total = np.maximum(worth.sum(axis=1), 1e-300)
    bids = worth / total[:, None] * budgets[:, None]
    users = np.flatnonzero((budgets > 0) & (worth.sum(axis=1) > 0)).tolist()
    turn, gain = 0, np.inf
    while gain > close and turn < turns:
        gain, price = 0.0, bids.sum(axis=0) + reserve
        for user in users:
            answer, better = _answer(worth[user], price, bids[user], float(budgets[user]), reserve)
            gain = max(gain, better)
            move = _step(turn) * (answer - bids[user])
            bids[user], price = bids[user] + move, price + move
        if gain <= close:  # No user gained in its turn; others have moved since.
            price = bids.sum(axis=0) + reserve
            gains = [_answer(worth[user], price, bids[user], float(budgets[user]), reserve)[1] for user in users]
            gain = max(gains, default=0.0)
        turn += 1
    return Market(bids, bids / (bids.sum(axis=0) + reserve), turn, gain <= close)


def _answer(worth: Floats, price: Floats, bids: Floats, budget: float, reserve: float) -> tuple[Floats, float]:
    """Return a user's best response, and the part of its utility that it gains."""
    others = np.maximum(price - bids, reserve)
    answer = best_response(worth, others, budget)
    now, then = (float((worth * bid / (bid + others)).sum()) for bid in (bids, answer))
    return answer, then / max(now, 1e-300) - 1.0


def measures(worth: Floats, parts: Floats, budgets: Floats) -> Measures:
    """Return the measures of any division of the machines, users without any worth left out."""
    sense = (worth.sum(axis=1) > 0) & (budgets > 0)
    worth, parts, budgets = worth[sense], parts[sense], budgets[sense]
    if not len(worth):
        return Measures(1.0, 1.0, 1.0)
    utility = (worth * parts).sum(axis=1)
    own = utility / budgets
    least = 1.0
    for user in range(len(worth)):
        envied = float((parts @ worth[user] / budgets).max())
        least = min(least, float(own[user]) / envied) if envied > 0 else least
    return Measures(
        efficiency=float(utility.sum() / worth.max(axis=0).sum()),
        uniformity=float(own.min() / own.max()) if own.max() > 0 else 1.0,
        envy_freeness=least,
    )
