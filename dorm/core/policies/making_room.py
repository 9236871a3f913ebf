"""Room for an app that waits, by shrinking a few of those that run, as long as θ2 lets them.

An app is served by as few others as will do.  Among those that help alike, the one furthest above its share shrinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.core.policies.placing import entries

if TYPE_CHECKING:
    from dorm.core.policies.integer import Flags, Floats, Ints
    from dorm.core.policies.placing import Draft


def make_room(draft: Draft, app: int, kept: Flags, changed: Flags, budget: int, over: Floats) -> list[int] | None:
    """Shrink apps until n_min of `app` fits, and place it.

    `kept` apps may shrink, to n_min at least; those that are `changed` already cost nothing more, of others at most
    `budget`.  `over` says how far each is above its share.  Gives who shrank; None where it can't be done, and then the
    draft is as it was.
    """
    instance = draft.instance
    before: dict[int, dict[int, int]] = {}
    shrunk: list[int] = []
    while (missing := int(instance.n_min[app]) - draft.takes(app)) > 0:
        fresh = sum(not changed[i] for i in shrunk)
        may = kept & (draft.n > instance.n_min)
        may[shrunk] = False
        if fresh >= budget:
            may &= changed
        victim = _most_helpful(draft, app, may, missing, over)
        if victim is None:
            for i in reversed(shrunk):
                draft.restore(i, before[i])
            return None
        before[victim] = dict(draft.rows[victim])
        _shrink(draft, app, victim, missing)
        shrunk.append(victim)
    draft.put(app, int(instance.n_min[app]))
    return shrunk


def by_help(draft: Draft, app: int, kept: Flags) -> list[int]:
    """Apps by how many containers of `app` would have room if theirs were somewhere else; those that give any."""
    instance, demand = draft.instance, draft.instance.demand[app]
    who, node, count = entries(draft.rows, np.flatnonzero(kept).tolist())
    if not len(who):
        return []
    usable = draft.may_use[instance.requirement[app]][draft.kind_of[node]]
    who, node, count = who[usable], node[usable], count[usable]
    gain = _takes(draft.free[node] + count[:, None] * instance.demand[who], demand) - _takes(draft.free[node], demand)
    total = np.zeros(len(draft.rows), np.int64)
    np.add.at(total, who, gain)
    order = np.lexsort((np.arange(len(total)), draft.n, -total))
    return [i for i in order.tolist() if total[i] > 0]


def _takes(free: Ints, demand: Ints) -> Ints:
    """How many containers each room takes."""
    needed = demand > 0
    if not needed.any():
        return np.zeros(len(free), np.int64)
    return np.asarray(np.maximum((free[:, needed] // demand[needed]).min(axis=1), 0))


def _most_helpful(draft: Draft, app: int, may: Flags, missing: int, over: Floats) -> int | None:
    """The app whose shrinking gives the most of what is missing; None where none gives any."""
    instance = draft.instance
    who, node, count = entries(draft.rows, np.flatnonzero(may).tolist())
    if not len(who):
        return None
    usable = draft.may_use[instance.requirement[app]][draft.kind_of[node]]
    who, node, count = who[usable], node[usable], count[usable]
    spare = draft.n[who] - instance.n_min[who]
    off = np.minimum(count, spare)
    demand = instance.demand[app]
    gain = _takes(draft.free[node] + off[:, None] * instance.demand[who], demand) - _takes(draft.free[node], demand)
    # What an app can give on several nodes at once is bounded by what it has to spare.
    each = np.divide(gain, off, out=np.zeros(len(who)), where=off > 0)
    total = np.zeros(len(draft.rows))
    best_each = np.zeros(len(draft.rows))
    np.add.at(total, who, gain)
    np.maximum.at(best_each, who, each)
    total = np.minimum(np.minimum(total, np.ceil(best_each * np.maximum(draft.n - instance.n_min, 0))), missing)
    if total.max(initial=0) <= 0:
        return None
    return int(np.lexsort((np.arange(len(total)), -np.round(over, 12), -total))[0])


def _shrink(draft: Draft, app: int, victim: int, missing: int) -> None:
    """Take off as few containers as give a further one of `app` room, node by node, the cheapest first."""
    instance, demand = draft.instance, draft.instance.demand[app]
    while missing > 0:
        spare = int(draft.n[victim] - instance.n_min[victim])
        options = []
        for node, count in sorted(draft.rows[victim].items()):
            if not draft.may_use[instance.requirement[app], draft.kind_of[node]]:
                continue
            off = np.arange(1, min(count, spare) + 1)
            free = draft.free[node] + off[:, None] * instance.demand[victim]
            gains = _takes(free, demand) - _takes(draft.free[node][None], demand)
            enough = np.flatnonzero(gains > 0)
            if len(enough):
                options.append((int(off[enough[0]]), node))
        if not options:
            return
        off_now, where = min(options)
        here = int(_takes(draft.free[where][None], demand)[0])
        draft.add(victim, where, -off_now)
        missing -= int(_takes(draft.free[where][None], demand)[0]) - here
