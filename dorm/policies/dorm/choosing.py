"""Chooses which apps change, and to how many containers: solves the count program until no other app would gain."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.dorm.counts import Program, Relaxed
    from dorm.policies.integer import Floats, Ints

ALL_AT_ONCE = 80
"""Up to this many apps are all candidates from the start."""

AT_ONCE = 50
"""Number of the first candidates if there are more apps; at least this many more join each time."""

UNPROMISING = 1e-5
"""An app that would lose more than this by a change, in units of U, is dropped for now: small programs are fast."""

ROUNDS = 8
"""Rounds of looking for other apps that would gain."""

EXCHANGES = 4
"""Exchanges of the changing apps, up to the first that gains nothing."""

TIGHT = 1e-4
"""A bound this close to its program's value is not tightened."""

NEGLIGIBLE = 1e-7
"""A gain below this, in units of U, counts as none."""


class Wanted(NamedTuple):
    n: Ints
    """Target counts; those of apps that stay are unchanged."""
    by_class: dict[int, list[tuple[int, float]]]
    """Counts by class of nodes, for apps that change."""
    changing: tuple[int, ...]
    """The apps that run and should change (S)."""
    ranking: tuple[int, ...]
    """Running apps by the value of changing them at the prices of this answer, highest first."""


class Outlook(NamedTuple):
    """The solution of the program when apps may change in part."""

    bound: float
    """Upper bound on any placement's utilization, less the prices of changes, of excess and of shares missing below
    floors."""
    changing: tuple[int, ...]
    """The apps that move most, at most R."""
    ranking: tuple[int, ...]
    """Running apps by the value of changing them at the prices of this answer."""
    room_price: Floats
    """κ × k: the value of the whole of a resource, by class of nodes."""
    loss_price: float
    """The price of a fairness loss of 1 more."""
    candidates: tuple[int, ...]
    """The final candidates."""


def relax(program: Program, start: Sequence[int] = ()) -> Outlook | None:
    """Solve the whole program by column generation, starting from these apps if given; None if there is no answer.  Raises
    SolverFailed."""
    movable = np.flatnonzero(program.may_change).tolist() if program.budget > 0 else []
    all_at_once = len(movable) <= ALL_AT_ONCE
    candidates = movable if all_at_once else [i for i in start if program.may_change[i]] or _first(program, movable)
    dropped: set[int] = set()
    returned: set[int] = set()
    """Apps that were dropped and would gain after all: they stay from then on, which ensures termination."""
    bound = np.inf
    relaxed = None
    for _ in range(ROUNDS):
        relaxed = program.solve(candidates, [])
        if relaxed is None and len(candidates) < len(movable):  # Making the room may require others.
            candidates = movable
            relaxed = program.solve(candidates, [])
        if relaxed is None:
            return None
        gains = _gains(program, relaxed)
        outside = np.maximum(gains - relaxed.change_price, 0.0)
        outside[candidates] = 0.0
        if program.budget <= 0:
            outside[:] = 0.0
        bound = min(bound, relaxed.value + float(outside.sum()))
        more = [i for i in _by(outside) if outside[i] > NEGLIGIBLE][: max(AT_ONCE, program.budget)]
        if not more or bound - relaxed.value < TIGHT * max(abs(bound), 1.0):
            break
        useful = gains > relaxed.change_price - UNPROMISING
        stay = {i for i in candidates if all_at_once or useful[i] or relaxed.part[i] > 0 or i in returned}
        dropped |= set(candidates) - stay
        returned |= dropped.intersection(more)
        candidates = sorted(stay.union(more))
    if relaxed is None:
        return None
    ranking = [i for i in _by(_gains(program, relaxed)) if program.may_change[i]]
    changing = tuple(_few(program, relaxed))
    return Outlook(float(bound), changing, tuple(ranking), relaxed.room_price, relaxed.loss_price, tuple(candidates))


def choose(program: Program, changing: Sequence[int]) -> Wanted | None:
    """Choose which apps change and to what, from a first choice: exchange apps as long as that improves the answer.  None if
    there is no answer.  Raises SolverFailed."""
    best: Relaxed | None = None
    chosen: list[int] = []
    following = list(changing)
    for _ in range(EXCHANGES):
        solved = program.solve([], following)
        if solved is None or (best is not None and solved.value <= best.value + NEGLIGIBLE):
            break
        best, chosen = solved, following
        following = _exchanged(program, best)
        if sorted(following) == sorted(chosen):
            break
    if best is None:
        return None
    gains = _gains(program, best)
    ranking = [*chosen, *(i for i in _by(gains) if i not in chosen and program.may_change[i])]
    return Wanted(_whole(program, best, chosen), best.by_class, tuple(chosen), tuple(ranking))


def bound_if_as_fair(program: Program, excess: float, lack: float, start: Sequence[int]) -> float | None:
    """Return an upper bound on U less the price of changes, for answers with no more excess and no more missing below floors
    than given; None if the program has no such answer.  Raises SolverFailed."""
    program.settle(excess, lack)
    outlook = relax(program, start)
    return None if outlook is None else outlook.bound


def _first(program: Program, movable: list[int]) -> list[int]:
    """Return the apps farthest from their shares, on either side, and those that would use most."""
    unit, n = program.unit, program.n
    gap = unit * n - program.terms.shares
    many = AT_ONCE // 2
    by_gap = sorted(movable, key=lambda i: (-round(abs(float(gap[i])), 12), i))[:many]
    room = np.maximum(program.high - n, 0) * program.instance.worth
    by_room = sorted(movable, key=lambda i: (-round(float(room[i]), 12), i))[:many]
    return sorted({*by_gap, *by_room})


def _by(values: Floats) -> list[int]:
    """Return rows, the largest first; ties by row."""
    order: list[int] = np.argsort(-np.round(values, 12), kind="stable").tolist()
    return order


def _gains(program: Program, relaxed: Relaxed) -> Floats:
    """Return the value of changing each app, at the prices of an answer."""
    gains = program.value_of_changing(relaxed) - program.stay_value(relaxed) - program.terms.prices
    return np.where(program.may_change, gains, -np.inf)


def _few(program: Program, relaxed: Relaxed) -> list[int]:
    """Return the R apps that move most; apps that do not move are left out."""
    moves = {
        i: abs(program.n[i] * (1 - part) + relaxed.n[i] - program.n[i]) * float(program.unit[i])
        for i, part in relaxed.part.items()
        if program.may_change[i] and part > 1e-6
    }
    return sorted(moves, key=lambda i: (-round(moves[i], 12), i))[: program.budget]


def _exchanged(program: Program, relaxed: Relaxed) -> list[int]:
    """Return the R apps with the highest positive gains at the prices of this answer."""
    gains = _gains(program, relaxed)
    return [i for i in _by(gains) if gains[i] > NEGLIGIBLE][: program.budget]


def _whole(program: Program, relaxed: Relaxed, chosen: list[int]) -> Ints:
    """Round down, which leaves a few containers over; filling the cluster assigns them."""
    n = program.n.astype(np.int64)
    for i, value in relaxed.n.items():
        if program.free[i] or i in chosen:
            n[i] = int(np.clip(np.floor(value + 1e-6), program.low[i], program.high[i]))
    return n
