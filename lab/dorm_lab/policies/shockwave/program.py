"""How many of the next rounds each app should get: the program of `market`, with whole rounds.

Only the number of an app's rounds counts in the objective, not which they are.  So the program has one integer for each app,
and the room of the window as a whole; `rounds` then finds the rounds.  Its linear relaxation splits few apps, and rounding it
is usually as good as the published tolerance asks for; else HiGHS searches for a bounded number of nodes, so the same problem
has the same answer on every machine.  The relaxation bounds every schedule of the window, even if whole partitions do not
fill each round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Ints
    from dorm_lab.policies.shockwave.market import Market

GAP = 1e-3
"""`solver_rel_gap` of all published configurations."""
SEARCH = 20_000
"""Columns × nodes of the solver's search, at most (one node at least)."""
SMALL = 400
"""Apps × rounds up to which a window is solved round by round, if whole partitions do not fill the rounds."""
GUARD_S = 300.0
"""Only a guard against crashes; the number of nodes decides when to stop, which is deterministic."""
_ROOM = 1e-9
"""The largest apparent excess of a resource by rounding errors."""


class Solution(NamedTuple):
    counts: Ints
    bound: float
    """No schedule of the window has a larger value (`Market.value`)."""
    status: str


def solve(market: Market) -> Solution | None:
    """Return the number of rounds of each app; None if the solver failed."""
    try:
        seconds, bound = _relaxed(market)
        counts = _rounded(market, seconds)
        if close(market.value(counts), bound):
            return Solution(counts, bound, "optimal")
        better, status = _searched(market)
    except Exception:  # A solver that raises costs quality, never the round.
        return None
    if better is None or market.value(better) <= market.value(counts):
        better = counts
    return Solution(better, bound, "optimal" if close(market.value(better), bound) else status)


def close(value: float, bound: float) -> bool:
    """Return whether a value is as near to the bound as the published tolerance asks for."""
    return bound - value <= GAP * max(abs(bound), 1e-9)


def _longest(market: Market) -> Ints:
    """Return the apps that can be the last to end: the others need less than the remaining time of the longest after the
    window."""
    return np.flatnonzero(market.left_s >= market.left_s.max() - market.rounds * market.round_s)


def _relaxed(market: Market) -> tuple[Floats, float]:
    """Return the seconds of each app if rounds can be split, and the value."""
    app, most, worth = market.segments()
    longest, last = _longest(market), len(app)
    place = np.full(len(market.left_s), -1)
    place[longest] = np.arange(len(longest))
    late = np.flatnonzero(place[app] >= 0)
    kinds = market.use.shape[1]
    blocks = [
        *((np.full(last, k), np.arange(last), market.use[app, k]) for k in range(kinds)),
        (kinds + place[app[late]], late, np.full(len(late), -1.0)),
        (kinds + np.arange(len(longest)), np.full(len(longest), last), np.full(len(longest), -1.0)),
    ]
    right = np.concatenate([np.full(kinds, market.rounds * market.round_s), -market.left_s[longest]])
    cost = np.append(-worth, market.makespan_worth)
    matrix = _matrix(blocks, (len(right), last + 1))
    solved = linprog(
        cost, A_ub=matrix, b_ub=right, bounds=[*((0.0, each) for each in most.tolist()), (0.0, None)], method="highs-ds"
    )
    if solved.status != 0:
        raise ValueError(solved.message)
    solution = np.asarray(solved.x, np.float64)
    none = np.zeros(len(market.left_s), np.int64)
    before = float(market.budget @ market.log_utility(none))
    seconds: Floats = np.bincount(app, weights=solution[:last], minlength=len(none)).astype(np.float64)
    return seconds, before - float(solved.fun or 0.0)


def _rounded(market: Market, seconds: Floats) -> Ints:
    """Round down; then give one round after the other where it adds most to the value per part of the cluster."""
    useful = market.useful
    counts = np.minimum(np.floor(seconds / market.round_s + 1e-6).astype(np.int64), useful)
    size = np.maximum(market.use.max(axis=1), 1e-12)
    free = market.rounds - counts @ market.use
    while True:
        fits = (market.use <= free + _ROOM).all(axis=1) & (counts < useful)
        if not fits.any():
            return counts
        left = market.left_s - market.planned_s(counts)
        gain = market.budget * (market.log_utility(counts + 1) - market.log_utility(counts))
        if len(left) > 1:
            last, second = int(np.argmax(left)), float(np.partition(left, -2)[-2])
            gain[last] += market.makespan_worth * min(left[last] - second, market.round_s)
        else:
            gain += market.makespan_worth * market.round_s
        best = int(np.argmax(np.where(fits, np.round(gain / size, 12), -np.inf)))
        counts[best] += 1
        free -= market.use[best]


def _searched(market: Market) -> tuple[Ints | None, str]:
    """Return the counts that HiGHS finds."""
    solved, status = _milp(market, each_round=False)
    counts = None if solved is None else solved[:, 0]
    if counts is not None and (counts @ market.use > market.rounds + _ROOM * len(counts)).any():
        return None, status
    return counts, status


def by_round(market: Market) -> Ints | None:
    """Return which apps run in which round (apps × rounds), by the published program with a variable for each app and round;
    None for a window that is too large for it."""
    if len(market.left_s) * market.rounds > SMALL:
        return None
    try:
        solved, _ = _milp(market, each_round=True)
    except Exception:  # A solver that raises costs quality, never the round.
        return None
    return solved if solved is not None and (solved.T @ market.use <= 1 + _ROOM * len(solved)).all() else None


def _milp(market: Market, *, each_round: bool) -> tuple[Ints | None, str]:
    """Columns: each app's rounds, as one number or round by round; the seconds in each of its segments; the makespan."""
    app, most, worth = market.segments()
    apps, pieces, kinds, longest = len(market.left_s), len(app), market.use.shape[1], _longest(market)
    shown = market.rounds if each_round else 1
    of, at = np.repeat(np.arange(apps), shown), np.tile(np.arange(shown), apps)
    runs, room = len(of), shown * kinds
    piece, makespan = runs + np.arange(pieces), runs + pieces
    place = np.full(apps, -1)
    place[longest] = np.arange(len(longest))
    late = np.flatnonzero(place[app] >= 0)
    blocks = [
        *((at * kinds + k, np.arange(runs), market.use[of, k]) for k in range(kinds)),
        (room + app, piece, np.ones(pieces)),
        (room + of, np.arange(runs), np.full(runs, -market.round_s)),
        (room + apps + place[app[late]], piece[late], np.full(len(late), -1.0)),
        (room + apps + np.arange(len(longest)), np.full(len(longest), makespan), np.full(len(longest), -1.0)),
    ]
    free = 1.0 if each_round else float(market.rounds)
    right = np.concatenate([np.full(room, free), np.zeros(apps), -market.left_s[longest]])
    cost = np.concatenate([np.zeros(runs), -worth, [market.makespan_worth]])
    columns = len(cost)
    whole: Any = np.concatenate([np.ones(runs), np.zeros(pieces + 1)])
    upper = np.concatenate([np.ones(runs) if each_round else market.useful, most, [np.inf]])
    options: Any = {"mip_rel_gap": GAP / 2, "node_limit": max(1, SEARCH // columns), "time_limit": GUARD_S}
    result = milp(
        cost,
        constraints=LinearConstraint(_matrix(blocks, (len(right), columns)), ub=right),
        bounds=Bounds(np.zeros(columns), upper),
        integrality=whole,
        options=options,
    )
    status = "near" if int(result.status) == 0 else "guard" if "Time limit" in result.message else "node_limit"
    if result.x is None or not np.isfinite(result.x).all():
        return None, status
    return np.rint(result.x[:runs]).astype(np.int64).reshape(apps, shown), status


def _matrix(blocks: list[tuple[Ints, Ints, Floats]], shape: tuple[int, int]) -> Any:
    rows, columns, entries = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return coo_array((entries, (rows, columns)), shape=shape).tocsc()
