"""From counts to partitions, for policies that choose a count for each app at every decision: `drf`, `themis` and `market`.

An app keeps the containers that it may keep where they are: of those that get fewer, the nodes with the fewest are cleared;
those that get more grow next to their present containers; an app whose count stays is not moved.  Counts are chosen
with the cluster treated as one machine, so whole containers may not fit its nodes: then an app gets what fits, at least
n_min or nothing, and the remaining room goes to apps in the policy's own order.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from dorm.policies import greedy, integer
from dorm.policies.baselines.packing import Packing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.policies.integer import Flags, Instance, Ints


def place(
    instance: Instance,
    wanted: Ints,
    level: Callable[[int, int], float],
    nodes: Callable[[int], Sequence[tuple[Flags, int]]] | None = None,
) -> Packing:
    """Return the partitions.

    `level(app, n)` rates an app with n units: the remaining room goes to the lowest, and to none at infinity.  `nodes(app)`
    are the nodes that it should be on, with its units there, the best first; by default, all are equal."""
    packing = Packing(instance, instance.pinned | (instance.kept & (wanted > 0)))
    movable = instance.free_to_move
    order = [*(i for i in instance.arrival if instance.kept[i]), *integer.queue(instance)]
    for app in order:
        if movable[app]:
            packing.shrink(app, sum(packing.rows[app].values()) - int(wanted[app]))
    for app in order:
        if movable[app] and wanted[app] and not packing.rows[app]:
            least = int(instance.n_min[app])
            if _grow(packing, app, least, nodes) < least:
                packing.take_back(app)
    for app in order:
        if movable[app] and packing.rows[app]:
            _grow(packing, app, int(wanted[app]) - sum(packing.rows[app].values()), nodes)
    _top_up(instance, packing, level)
    _restore(instance, packing)
    return packing


def _grow(packing: Packing, app: int, count: int, nodes: Callable[[int], Sequence[tuple[Flags, int]]] | None) -> int:
    """Place up to `count` more; return how many found room."""
    done = 0
    for mask, most in [] if nodes is None or count <= 0 else nodes(app):
        here = sum(amount for node, amount in packing.rows[app].items() if mask[node])
        done += packing.put(app, min(count - done, most - here), mask)
    return done + packing.put(app, count - done)


def _top_up(instance: Instance, packing: Packing, level: Callable[[int, int], float]) -> None:
    """Give one unit after the other to the app with the lowest level; ties go to the earlier app; more at once if counts are
    extreme."""
    heap = []
    for place_, app in enumerate(instance.arrival):
        n = sum(packing.rows[app].values())
        if packing.rows[app] and not instance.pinned[app] and instance.worth[app] > 0:
            heap.append((level(app, n), place_, app, n))
    heapq.heapify(heap)
    refused: set[tuple[bytes, int]] = set()
    while heap:
        worst, place_, app, n = heapq.heappop(heap)
        key = (instance.demand[app].tobytes(), int(instance.requirement[app]))
        most = int(instance.fits_empty[app])
        if n >= most or worst == float("inf") or key in refused:
            continue
        step = min(most - n, 1 + most // greedy.FINE_STEPS)
        if (done := packing.put(app, step)) < step:
            refused.add(key)  # Room only shrinks, so equal apps need not try.
        if done:
            heapq.heappush(heap, (level(app, n + done), place_, app, n + done))


def _restore(instance: Instance, packing: Packing) -> None:
    """Move apps back that have another place and the same count: a move is a restart, too."""
    moved = [
        app
        for app in instance.arrival
        if instance.kept[app]
        and packing.rows[app] != instance.rows[app]
        and sum(packing.rows[app].values()) == instance.count[app]
    ]
    places = {app: packing.take_back(app) for app in moved}
    back = [packing.put_back(app, instance.rows[app]) for app in moved]
    if all(back):
        return
    for app in moved:
        packing.take_back(app)
    for app in moved:
        packing.put_back(app, places[app])
    for app in moved:
        here = packing.take_back(app)
        if not packing.put_back(app, instance.rows[app]):
            packing.put_back(app, here)
