"""The answer that always exists: keep running apps, start those that fit, then fill.

It serves when the solver has no answer or the problem is too large for it, and as the candidate that every answer of the
solver has to beat.  It only adds containers, so it never breaks n_min or a node's room.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import integer

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Instance, Ints
    from dorm.policies.scoring import Terms


FINE_STEPS = 1_000
"""Up to this many containers are placed one by one, more than that a node at a time: counts may be extreme."""


def best_node(free: Ints, demand: Ints, scale: Ints, *, most: Ints | None = None) -> int | None:
    """Return the node whose free room points most in the direction of the demand (cosine); None if none has room.

    This leaves rare resources to apps that need them: a node with idle GPUs points away from an app without.
    `most` is how many more containers each node may get.  Ties go to the first id.
    """
    fits = (free >= demand).all(axis=1)
    if most is not None:
        fits &= most > 0
    if not fits.any():
        return None
    room = free[fits] / scale
    need = demand / scale
    length = np.sqrt((room * room).sum(axis=1))
    cosine = np.divide((room * need).sum(axis=1), length, out=np.zeros(len(room)), where=length > 0)
    return int(np.flatnonzero(fits)[int(np.argmax(np.round(cosine, 9)))])


def put(instance: Instance, free: Ints, x: Ints, app: int, count: int, closed: Flags | None = None) -> int:
    """Place up to `count` more containers of an app, changing `x` and `free`; return how many found room.

    Nodes that are `closed` get nothing."""
    scale = np.maximum(instance.capacity.max(axis=0, initial=1), 1)
    done = 0
    while done < count:
        most = instance.holds[app] - x[app]
        node = best_node(free, instance.demand[app], scale, most=most if closed is None else np.where(closed, 0, most))
        if node is None:
            break
        needed = instance.demand[app] > 0
        fits = int((free[node][needed] // instance.demand[app][needed]).min(initial=int(most[node])))
        here = min(1 if count <= FINE_STEPS else count - done, fits, int(most[node]))
        free[node] -= here * instance.demand[app]
        x[app, node] += here
        done += here
    return done


def start(instance: Instance, aged: Flags, reserved: tuple[int, Flags] | None) -> Ints:
    """Keep everything that can stay; then give n_min to apps that were hit, to apps that have waited too long, and to the
    others, first come first served.  Nodes reserved for an app that can't start are closed to the apps after it."""
    x = np.where((instance.kept | instance.pinned)[:, None], instance.current, 0)
    free = integer.free_room(instance, integer.rows_of(x))
    closed: Flags | None = None
    asking = integer.queue(instance)
    for app in sorted(asking, key=lambda i: (not instance.running[i], not aged[i])):
        keep_in_place(instance, free, x, app)
        lacking = int(instance.n_min[app] - x[app].sum())
        if lacking > 0 and put(instance, free, x, app, lacking, closed) < lacking:
            free += x[app][:, None] * instance.demand[app]
            x[app] = 0
            if reserved is not None and app == reserved[0]:
                closed = reserved[1]
    return x


def keep_in_place(instance: Instance, free: Ints, x: Ints, app: int) -> None:
    """Keep the containers of a hit partition that can stay."""
    for node in np.flatnonzero(instance.current[app]).tolist():
        demand = instance.demand[app]
        needed = demand > 0
        fits = int((free[node][needed] // demand[needed]).min(initial=int(instance.current[app, node])))
        fits = fits if instance.eligible[instance.requirement[app], node] else 0
        keep = min(fits, int(instance.current[app, node]), int(instance.n_max[app] - x[app].sum()))
        x[app, node] = max(keep, 0)
        free[node] -= x[app, node] * demand


def fill(instance: Instance, x: Ints, terms: Terms, closed: Flags | None = None) -> Ints:
    """Grow apps into the free room, the one furthest below its share first, within θ1 and θ2."""
    x = x.copy()
    free = integer.free_room(instance, integer.rows_of(x))
    n = x.sum(axis=1)
    grows = _who_may_grow(instance, x, terms)
    loss = integer.loss(instance, n, terms.shares)
    heap = [(_fullness(instance, terms, app, int(n[app])), app) for app in np.flatnonzero(grows).tolist()]
    heapq.heapify(heap)
    while heap:
        _, app = heapq.heappop(heap)
        unit, share = instance.unit[app], terms.shares[app]
        step = 1 + int(instance.n_max[app]) // FINE_STEPS
        after = loss + abs((n[app] + step) * unit - share) - abs(n[app] * unit - share)
        if n[app] >= instance.n_max[app] or (after > loss and after > terms.loss_budget):
            continue
        done = put(instance, free, x, app, min(step, int(instance.n_max[app] - n[app])), closed)
        if done:
            loss += abs((n[app] + done) * unit - share) - abs(n[app] * unit - share)
            n[app] += done
            heapq.heappush(heap, (_fullness(instance, terms, app, int(n[app])), app))
    return x


def _fullness(instance: Instance, terms: Terms, app: int, count: int) -> float:
    share = float(terms.shares[app])
    return round(count * float(instance.unit[app]) / share, 9) if share > 0 else float("inf")


def _who_may_grow(instance: Instance, x: Ints, terms: Terms) -> Flags:
    """Return apps that start or were hit, and as many others as θ2 allows: those furthest below their shares."""
    placed = (x.sum(axis=1) > 0) & instance.free_to_move & (instance.worth > 0)
    grows: Flags = placed & ~instance.kept
    gap = terms.shares - x.sum(axis=1) * np.where(np.isfinite(instance.unit), instance.unit, 0.0)
    others = [i for i in np.flatnonzero(placed & instance.kept).tolist() if x[i].sum() < instance.n_max[i]]
    others.sort(key=lambda i: (-round(float(gap[i]), 9), i))
    grows[others[: terms.change_budget]] = True
    return grows
