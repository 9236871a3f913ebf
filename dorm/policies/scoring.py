"""The exact score of an answer, and the constraints that it breaks.

Solvers work in floating point and greedy answers may be poor, so no answer is trusted: `faults` checks every constraint in
integers, `score` rates the answer goal by goal, and `better` compares two scores lexicographically.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies.integer import LOSS_TOLERANCE, changed, counts_of, entries, free_room, loss, queue, utilization

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Flags, Floats, Instance, Ints, Rows

WORTH_TOLERANCE = 2e-6
"""Utilizations closer than this part of the largest container's worth are equal: the solver is no more precise."""


class Terms(NamedTuple):
    """The terms that answers are scored by, beyond the instance itself."""

    shares: Floats
    """ŝ_i; 0 for an app that cannot run next to the others now."""
    loss_budget: float
    change_budget: int
    floors: Ints
    """The count that each app should at least have, if possible."""
    prices: Floats
    """The price of changing the app, in units of U."""
    aged: Flags
    """Apps that have waited too long: they come before all other waiting apps, by arrival."""
    capped: bool = False
    """Whether the absolute cap, not θ2, determines `change_budget`."""
    target: Sequence[dict[int, int]] | None = None
    """The placement of apps if θ2 did not hold back a waiting app: containers of others beyond it block that app."""


class Score(NamedTuple):
    """A score goal by goal; the first difference decides.  Smaller is better except for `net`."""

    lost: int
    """n_min of apps that ran and cannot continue."""
    aged: tuple[int, ...]
    """1 for each app that has waited too long and gets nothing, in order of arrival."""
    waiting: int
    """n_min of apps that are not started."""
    order: tuple[int, ...]
    """1 for each app that gets nothing, in order of precedence."""
    in_the_way: int
    """Containers where the target has none."""
    excess: float
    below_floor: int
    net: float
    """U less the price of the changes."""
    changed: int
    moved: int
    """Containers that apps which ran start on a node."""
    misplaced: int
    """Distance of apps that are being placed from their wish: nodes beyond the first for `pack`, containers beyond the first
    on each node for `spread`."""


def change_cost(instance: Instance, rows: Rows, terms: Terms) -> float:
    return math.fsum(terms.prices[changed(instance, rows) & instance.kept].tolist())


def score(instance: Instance, rows: Rows, terms: Terms) -> Score:
    n, gang = counts_of(rows), instance.gang
    movable, kept = instance.free_to_move, instance.kept
    short = movable & (n < instance.n_min)
    over = max(0.0, loss(instance, n, terms.shares) - terms.loss_budget)
    touched = changed(instance, rows)
    moved = sum(beyond(rows[i], instance.rows[i]) * int(gang[i]) for i in np.flatnonzero(touched).tolist())
    waits = short & ~instance.running
    in_the_way = 0
    if terms.target is not None:
        in_the_way = sum(beyond(rows[i], terms.target[i]) * int(gang[i]) for i in np.flatnonzero(movable).tolist())
    return Score(
        lost=int((instance.n_min * gang)[short & instance.running].sum()),
        aged=tuple(int(short[i]) for i in instance.arrival if terms.aged[i]),
        waiting=int((instance.n_min * gang)[waits].sum()),
        order=tuple(int(short[i]) for i in queue(instance)),
        in_the_way=in_the_way,
        excess=over if over > LOSS_TOLERANCE else 0.0,
        below_floor=int((np.maximum(terms.floors - n, 0) * gang)[movable & ~short].sum()),
        net=utilization(instance, n) - math.fsum(terms.prices[touched & kept].tolist()),
        changed=int((touched & kept).sum()),
        moved=moved,
        misplaced=sum(
            misplaced(app.placement, rows[i])
            for i, app in enumerate(instance.apps)
            if app.placement and movable[i] and (touched[i] or not instance.running[i])
        ),
    )


def beyond(row: dict[int, int], other: dict[int, int]) -> int:
    """Return how many containers of a row are where the other has none."""
    return sum(max(0, count - other.get(node, 0)) for node, count in row.items())


def misplaced(wish: str, row: dict[int, int]) -> int:
    """Return how far a placement is from the app's wish."""
    if wish == "pack":
        return max(0, len(row) - 1)
    return sum(row.values()) - len(row) if wish == "spread" else 0


def resolution(instance: Instance) -> float:
    """Return the smallest difference of U that counts."""
    return WORTH_TOLERANCE * float(instance.worth[instance.possible].max(initial=0.0))


def better(instance: Instance, left: Score, right: Score) -> bool:
    """Return whether `left` beats `right` at the first goal in which they differ."""
    if left[:5] != right[:5]:
        return left[:5] < right[:5]
    if abs(left.excess - right.excess) > LOSS_TOLERANCE:
        return left.excess < right.excess
    if left.below_floor != right.below_floor:
        return left.below_floor < right.below_floor
    if abs(left.net - right.net) > resolution(instance):
        return left.net > right.net
    return left[8:] < right[8:]


def faults(instance: Instance, rows: Rows, change_budget: int, reserved: tuple[int, Flags] | None = None) -> list[str]:
    """Return every constraint that an answer breaks, in words; empty for a valid answer.

    `reserved` nodes give other apps no further container while the app that they are reserved for gets none."""
    broken = []
    n = counts_of(rows)
    app, node, count = entries(rows)
    if (count <= 0).any():
        broken.append("a count that is not positive")
    pinned = np.flatnonzero(instance.pinned).tolist()
    if any(rows[i] != instance.rows[i] for i in pinned):
        broken.append("a pinned app was moved")
    if (free_room(instance, rows) < 0).any():
        broken.append("a node is given more than it has")
    if (~instance.eligible[instance.requirement[app], node] & ~instance.pinned[app]).any():
        broken.append("an app is placed on a node that does not satisfy what it requires")
    if ((n > 0) & ((n < instance.n_min) | (n > instance.n_max)) & ~instance.pinned).any():
        broken.append("a count outside n_min..n_max")
    if (n[~instance.possible] > 0).any():
        broken.append("an app is placed where it cannot run")
    if (n < instance.n_min)[instance.kept].any():
        broken.append("an app that could go on was stopped")
    if int((changed(instance, rows) & instance.kept).sum()) > change_budget:
        broken.append("more apps changed than θ2 allows")
    if reserved is not None and not rows[reserved[0]]:
        closed = reserved[1]
        others = np.flatnonzero(~instance.pinned & ~instance.forced).tolist()
        if any(closed[j] and count > instance.rows[i].get(j, 0) for i in others for j, count in rows[i].items()):
            broken.append("a node that is kept for an app which has waited long was given to another")
    return broken
