"""Whole partitions in an order of precedence, with preemption: apps further back are stopped for those before them.

The common part of `tiresias`, `srtf` and `gavel`, which differ in the order and, for `gavel`, in the group of nodes on which
each app may run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies.baselines.packing import Packing, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Instance, Ints


class Choice(NamedTuple):
    """An app on one group of nodes."""

    app: int
    group: int = 0


def serve(instance: Instance, wanted: Ints, order: Sequence[Choice], groups: Ints | None = None) -> Packing:
    """Return whole partitions of `wanted` units, by `order`; an app may occur once for each group.

    `groups` has the group of each node; by default all are of group 0.  Each group is first treated as one machine, which
    determines the apps that should run.  Those that already run there with the wanted count stay.  With several kinds of
    resources, or fragmentation, an app may fit the group as a whole and not its nodes: then apps behind it are stopped, last
    first, until it fits."""
    groups = np.zeros(len(instance.nodes), np.int64) if groups is None else groups
    chosen = _chosen(instance, wanted, order, groups)
    stays = instance.pinned.copy()
    for app, group in chosen:
        here = instance.rows[app]
        fixed = instance.kept[app] and instance.count[app] == wanted[app]
        stays[app] = fixed and all(groups[node] == group for node in here)
    packing = Packing(instance, stays)
    masks = [groups == group for group in range(int(groups.max(initial=0)) + 1)]
    for place, (app, group) in enumerate(chosen):
        if not packing.rows[app] and not packing.put_all(app, int(wanted[app]), masks[group]):
            behind = [choice.app for choice in chosen[place + 1 :]]
            _make_room(instance, packing, Choice(app, group), int(wanted[app]), behind, groups)
    for app, group in order:
        if not packing.rows[app]:
            packing.put_all(app, int(wanted[app]), masks[group])
    return packing


def _chosen(instance: Instance, wanted: Ints, order: Sequence[Choice], groups: Ints) -> list[Choice]:
    """Return which apps should run where, with each group treated as one machine."""
    left = [instance.room[groups == group].sum(axis=0) for group in range(int(groups.max(initial=0)) + 1)]
    served = np.zeros(len(instance.apps), np.bool_)
    chosen = []
    for choice in order:
        app, group = choice
        count = int(wanted[app])
        if not served[app] and within(instance.demand[app], count, left[group]):
            served[app] = True
            left[group] -= instance.demand[app] * count
            chosen.append(choice)
    return chosen


def _make_room(
    instance: Instance, packing: Packing, choice: Choice, count: int, behind: Sequence[int], groups: Ints
) -> None:
    """Stop as few of the apps behind it as possible, last first, so that it fits; no app is stopped needlessly, and
    apps that still have room continue where they were."""
    app, group = choice
    mask = groups == group
    others = [other for other in reversed(behind) if packing.rows[other]]

    def enough(stopped: int) -> bool:
        free = packing.free.copy()
        for other in others[:stopped]:
            for node, amount in packing.rows[other].items():
                free[node] += amount * instance.demand[other]
        return int(packing.fits(app, count, mask, free).sum()) >= count

    low, high = 0, len(others)
    if not enough(high):
        return
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    stopped = [(other, packing.take_back(other)) for other in others[:high]]
    packing.put_all(app, count, mask)
    for other, row in reversed(stopped):
        packing.put_back(other, row)
