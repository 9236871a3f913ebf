"""Makes room for a waiting app by shrinking or moving a few running ones, within θ2.

As few others as possible change for it.  Among those that help equally, the one furthest above its share shrinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array

from dorm.policies.dorm.placing import entries
from dorm.policies.exact.model import whole

if TYPE_CHECKING:
    from dorm.policies.dorm.placing import Draft
    from dorm.policies.integer import Flags, Floats, Ints


MOST_CLEARED = 64
"""Nodes that may be cleared for one app."""

TOGETHER = 20_000
"""Apps times nodes up to which several apps together may be made to shrink."""


def make_room(draft: Draft, app: int, kept: Flags, changed: Flags, budget: int, over: Floats) -> list[int] | None:
    """Shrink apps until n_min of `app` fits, and place it.

    `kept` apps may shrink, at least to n_min; apps that are `changed` already cost nothing more, of others at most `budget`
    may change.  `over` is how far each is above its share.  Return the apps that shrank; None if it is impossible, and then
    the draft is unchanged.
    """
    shrunk = _app_by_app(draft, app, kept, changed, budget, over)
    if shrunk is None and len(draft.rows) * len(draft.free) <= TOGETHER:
        shrunk = _together(draft, app, kept, changed, budget)
    if shrunk is None:
        shrunk = _by_moving(draft, app, kept, changed, budget)
    if shrunk is not None:
        draft.put(app, int(draft.instance.n_min[app]))
    return shrunk


def _app_by_app(draft: Draft, app: int, kept: Flags, changed: Flags, budget: int, over: Floats) -> list[int] | None:
    """Shrink the app that helps most, then the next."""
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
    return shrunk


def _together(draft: Draft, app: int, kept: Flags, changed: Flags, budget: int) -> list[int] | None:
    """Several apps may have to give way on one node because none of them would suffice alone: a small integer program finds
    the fewest that suffice.  With y_j containers of `app` on node j, and off_ij of app i removed there:

        min Σ r_i + ε Σ u_i off_ij   s.t.   d_k y_j - Σ_i d_ik off_ij ≤ free_jk,   Σ_j y_j ≥ n_min,
                                            Σ_j off_ij ≤ (n_i - n_min_i) r_i,   Σ_i r_i ≤ budget
    """
    instance, demand = draft.instance, draft.instance.demand[app]
    able = kept & (draft.n > instance.n_min)
    who, node, count = entries(draft.rows, np.flatnonzero(able).tolist())
    usable = draft.may_use[instance.requirement[app]][draft.kind_of]
    who, node, count = who[usable[node]], node[usable[node]], count[usable[node]]
    nodes = np.flatnonzero(usable)
    spare = draft.n - instance.n_min
    givers = np.unique(who)
    y, off, r = len(nodes), len(who), len(givers)
    at_node = np.full(len(draft.free), -1)
    at_node[nodes] = np.arange(y)
    at_giver = np.full(len(draft.rows), -1)
    at_giver[givers] = np.arange(r)
    kinds = len(instance.kinds)
    scale = np.maximum(instance.capacity[nodes], 1).astype(np.float64)
    place, kind = np.repeat(np.arange(y), kinds), np.tile(np.arange(kinds), y)
    used_nodes = at_node[node]
    taken = (instance.demand[who] / scale[used_nodes]).reshape(-1)
    rows = [place * kinds + kind, (used_nodes[:, None] * kinds + np.arange(kinds)).reshape(-1)]
    columns = [place, y + np.repeat(np.arange(off), kinds)]
    values = [(demand / scale).reshape(-1), -taken]
    upper = [(draft.free[nodes] / scale).reshape(-1)]
    first = y * kinds
    rows += [first + at_giver[who], first + np.arange(r), np.full(r, first + r), np.full(y, first + r + 1)]
    columns += [y + np.arange(off), y + off + np.arange(r), y + off + np.arange(r), np.arange(y)]
    values += [np.ones(off), -spare[givers].astype(np.float64), (~changed[givers]).astype(np.float64), -np.ones(y)]
    upper += [np.zeros(r), np.array([float(budget), -float(instance.n_min[app])])]
    matrix = coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(first + r + 2, y + off + r)
    )
    worth = instance.worth[who] / max(float((instance.worth[who] * count).sum()), 1e-12)
    cost = np.concatenate([np.zeros(y), 0.5 * worth, (~changed[givers]).astype(np.float64)])
    most = np.concatenate([np.full(y, float(instance.n_max[app])), np.minimum(count, spare[who]), np.ones(r)])
    solution = whole(cost, matrix, np.concatenate(upper), most)
    if solution is None:
        return None
    before = {int(i): dict(draft.rows[i]) for i in givers.tolist()}
    shrunk: list[int] = []
    for index in np.flatnonzero(solution[y : y + off]).tolist():
        draft.add(int(who[index]), int(node[index]), -int(solution[y + index]))
        shrunk.append(int(who[index]))
    shrunk = sorted(dict.fromkeys(shrunk))
    fresh = sum(not changed[i] for i in shrunk)
    if fresh > budget or (draft.n < instance.n_min)[shrunk].any() or draft.takes(app) < instance.n_min[app]:
        for i in shrunk:
            draft.restore(i, before[i])
        return None
    return shrunk


def _by_moving(draft: Draft, app: int, kept: Flags, changed: Flags, budget: int) -> list[int] | None:
    """If no app can shrink, move apps elsewhere node by node, starting with nodes from which the fewest apps have to go."""
    need, demand = int(draft.instance.n_min[app]), draft.instance.demand[app]
    usable = draft.may_use[draft.instance.requirement[app]][draft.kind_of]
    who, node, count = entries(draft.rows, np.flatnonzero(kept).tolist())
    empty = draft.free.copy()
    np.add.at(empty, node, count[:, None] * draft.instance.demand[who])
    gain = np.where(usable, _takes(empty, demand) - _takes(draft.free, demand), 0)
    on_node = np.bincount(node, weights=~changed[who], minlength=len(draft.free))
    order = np.lexsort((np.arange(len(gain)), -gain, on_node))
    standing: dict[int, list[int]] = {}
    for i, j in zip(who.tolist(), node.tolist(), strict=True):
        standing.setdefault(j, []).append(i)
    before: dict[int, dict[int, int]] = {}
    closed = draft.closed
    for j in order[gain[order] > 0].tolist()[:MOST_CLEARED]:
        missing = need - draft.takes(app)
        if missing <= 0:
            break
        if sum(not changed[i] for i in dict.fromkeys([*before, *standing[j]])) > budget:
            continue
        # Not to nodes that already have room for the app, or will have it.
        elsewhere = _without(draft, j, standing[j], closed | (_takes(draft.free, demand) > 0))
        if elsewhere is None or need - elsewhere.takes(app) >= missing:
            continue
        for i in standing[j]:
            before.setdefault(i, dict(draft.rows[i]))
        _give(draft, {i: elsewhere.rows[i] for i in standing[j]})
        closed = closed | (np.arange(len(closed)) == j)
    if draft.takes(app) < need:
        _give(draft, before)
        return None
    return list(before)


def _without(draft: Draft, node: int, apps: list[int], closed: Flags) -> Draft | None:
    """Return the draft with these apps' containers moved off a node, to none that is `closed`; None if impossible."""
    trial = draft.copy()
    trial.close(closed | (np.arange(len(closed)) == node))
    for i in apps:
        here = trial.rows[i][node]
        trial.add(i, node, -here)
        if trial.put(i, here) < here:
            return None
    trial.close(draft.closed)
    return trial


def _give(draft: Draft, rows: dict[int, dict[int, int]]) -> None:
    """Give several apps other places at once, possibly each other's."""
    for i in rows:
        draft.clear(i)
    for i, row in rows.items():
        draft.restore(i, dict(row))


def by_help(draft: Draft, app: int, kept: Flags) -> list[int]:
    """Return apps by how many containers of `app` would fit if theirs were elsewhere; only those that free any room."""
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
    """Return how many containers each room takes."""
    needed = demand > 0
    if not needed.any():
        return np.zeros(len(free), np.int64)
    return np.asarray(np.maximum((free[:, needed] // demand[needed]).min(axis=1), 0))


def _most_helpful(draft: Draft, app: int, may: Flags, missing: int, over: Floats) -> int | None:
    """Return the app whose shrinking frees the most of the missing room; None if none frees any."""
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
    # An app can free at most the containers that it can spare, on all nodes together.
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
    """Remove just enough containers for a further one of `app`, node by node, the fewest removals first."""
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
