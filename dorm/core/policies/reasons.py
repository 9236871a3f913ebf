"""Why an app has fewer containers than it could use: the constraint that binds, as a code and a sentence.

Reasons are read off the answer itself, not off the way to it: they say what is true of the placement that was decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.core.policies import greedy, integer
from dorm.core.policies.problem import Reason

if TYPE_CHECKING:
    from dorm.core.policies.integer import Flags, Instance, Ints, Terms

GIB, MIB, KIB = 2**30, 2**20, 2**10


def amount(kind: str, value: int) -> str:
    """`cpu` in cores, `memory` in GiB (or what keeps it exact to two digits), anything else as a count with its name."""
    if kind == "cpu":
        return f"{_short(value, 1000)} {'core' if value == 1000 else 'cores'}"
    if kind == "memory":
        for size, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
            if value >= size:
                return f"{_short(value, size)} {name}"
        return f"{value} B"
    if kind == "gpu":
        return f"{value} {'GPU' if value == 1 else 'GPUs'}"
    return f"{value} {kind}"


def _short(value: int, size: int) -> str:
    """At most three decimals and never rounded up, so that what is said to be free is free."""
    return f"{value * 1000 // size / 1000:.3f}".rstrip("0").rstrip(".")


def lacking(instance: Instance, free: Ints, app: int) -> str:
    """Which resources keep the app off the nodes, given what is free; '' where some node could take a container."""
    nodes = len(instance.nodes)
    if nodes == 0:
        return "there are no nodes"
    absent = [
        kind for kind, need in sorted(instance.apps[app].demand.items()) if need > 0 and kind not in instance.kinds
    ]
    if absent:
        return f"no node has any {_noun(absent[0])}"
    short = free < instance.demand[app]
    if not short.any(axis=1).all():
        return ""
    for k, kind in enumerate(instance.kinds):
        if short[:, k].all():
            most = int(np.argmax(free[:, k]))
            closest = f"{instance.nodes[most]} with {amount(kind, int(free[most, k]))}"
            return f"no node has {amount(kind, int(instance.demand[app, k]))} free (closest: {closest})"
    parts = [
        f"{int(short[:, k].sum())} of {nodes} nodes lack {_noun(kind)}"
        for k, kind in enumerate(instance.kinds)
        if short[:, k].any()
    ]
    needs = [
        amount(kind, int(instance.demand[app, k])) for k, kind in enumerate(instance.kinds) if instance.demand[app, k]
    ]
    return f"no node has {' and '.join(needs)} free at once ({', '.join(parts)})"


def _noun(kind: str) -> str:
    return {"cpu": "cores", "gpu": "GPUs"}.get(kind, kind)


def fits(free: Ints, demand: Ints, most: int) -> int:
    """How many containers the free room holds, at most `most`."""
    needed = demand > 0
    if not needed.any():
        return most if len(free) else 0
    return int(min((free[:, needed] // demand[needed]).min(axis=1).sum(), most))


def impossible(instance: Instance, app: int) -> Reason:
    """For an app that not even an empty cluster could run."""
    text = lacking(instance, instance.capacity, app)
    n_min, room = int(instance.n_min[app]), int(instance.fits_empty[app])
    if not text:
        text = f"an empty cluster would hold {room} of its containers, {n_min - room} short of n_min {n_min}"
    return Reason("no_nodes", text.replace(" free (closest: ", " (the largest: ").replace(" free at once", " together"))


def no_room(instance: Instance, free: Ints, app: int, wanted: int, name: str) -> Reason | None:
    """For an app that waits for `wanted` containers (n_min, or the static count, as `name` says); None if they fit."""
    room = fits(free, instance.demand[app], wanted)
    if room >= wanted:
        return None
    rest = free
    if room:
        rest, x = free.copy(), np.zeros_like(instance.current)
        greedy.put(instance, rest, x, app, room)
    text = lacking(instance, rest, app)
    beside = f"beside {room} of its containers, " if room else ""
    missing = wanted - room
    return Reason(
        "resources",
        f"{beside}{text}; {missing} {'container' if missing == 1 else 'containers'} short of {name} {wanted}",
    )


def explain(instance: Instance, x: Ints, terms: Terms, *, held_back: Flags, status: str) -> dict[str, Reason]:
    """The reasons of the optimizer, for every app below its n_max."""
    free = greedy.free_room(instance, x)
    touched = integer.changed(instance, x)
    spent = int((touched & instance.kept).sum())
    loss = integer.loss(instance, x, terms.shares)
    found = {}
    for i, app in enumerate(instance.apps):
        n = int(x[i].sum()) if not instance.pinned[i] else sum(app.current.values())
        if n >= instance.n_max[i]:
            continue
        if instance.pinned[i]:
            reason = Reason("adjusting", "in the middle of an adjustment; stays as it is until that is done")
        elif not instance.possible[i]:
            reason = impossible(instance, i)
        elif n < instance.n_min[i]:
            reason = _waits(instance, free, i, terms, held_back=bool(held_back[i]))
        else:
            stays = bool(instance.kept[i] and not touched[i])
            reason = _could_grow(instance, x, free, i, terms, loss=loss, stays=stays, spent=spent, status=status)
        found[app.id] = reason
    return found


def _waits(instance: Instance, free: Ints, app: int, terms: Terms, *, held_back: bool) -> Reason:
    n_min = int(instance.n_min[app])
    short = no_room(instance, free, app, n_min, "n_min")
    if held_back:
        running = int(instance.running.sum())
        text = f"others have to shrink first, and θ2 lets {terms.change_budget} of {running} running apps change in a round"
        return Reason("overhead", f"{text}; {short.text}" if short else text)
    if short is None:
        return Reason("solver", f"there is room for n_min {n_min}, but no answer with it was found")
    return short


def _could_grow(
    instance: Instance,
    x: Ints,
    free: Ints,
    app: int,
    terms: Terms,
    *,
    loss: float,
    stays: bool,
    spent: int,
    status: str,
) -> Reason:
    text = lacking(instance, free, app)
    if text:
        return Reason("resources", text)
    unit, n = float(instance.unit[app]), int(x[app].sum())
    theoretical = float(terms.shares[app])
    after = loss + abs((n + 1) * unit - theoretical) - abs(n * unit - theoretical)
    if stays and spent >= terms.change_budget:
        running = int(instance.running.sum())
        return Reason("overhead", f"θ2 lets {terms.change_budget} of {running} running apps change in this round")
    if terms.target is not None and (x[app] + (free >= instance.demand[app]).all(axis=1) > terms.target[app]).any():
        return Reason(
            "overhead", "the free room is being cleared for an app that waits, over several rounds as θ2 wants it"
        )
    if after > max(loss, terms.loss_budget) + integer.LOSS_TOLERANCE:
        share = f"its dominant share is {n * unit:.3g} of a fair {theoretical:.3g}"
        return Reason(
            "fairness",
            f"one more would raise the fairness loss to {after:.3g}, θ1 allows {terms.loss_budget:.3g}; {share}",
        )
    more = min(fits(free, instance.demand[app], int(instance.n_max[app])), int(instance.n_max[app]) - n)
    gain = more * float(instance.worth[app])
    if stays and gain <= float(terms.prices[app]) + integer.resolution(instance):
        return Reason("price", f"{more} more would gain less than the checkpoint and restart of {n} containers costs")
    if gain <= 0:
        return Reason("price", "it needs nothing of what is counted, so more containers use nothing more")
    return Reason("solver", f"there is room for {more} more, but no better answer was found ({status})")
