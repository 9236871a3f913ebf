"""Judges a policy's answer from the problem and the answer alone, with none of the optimizer's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from events.spec.requirements import requirement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from dorm.policies.problem import AppDemand, NodeRoom, Problem


class Served(NamedTuple):
    """How well an answer serves n_min, the first goal.  The first entry that differs decides; less is better."""

    lost: int
    """n_min of apps that ran and are stopped."""
    aged: tuple[bool, ...]
    """Apps that have waited beyond the policy's patience, by arrival: True for one that still waits."""
    waiting: int
    """n_min of apps that wait."""
    order: tuple[bool, ...]
    """Apps, those that ran first, then by arrival: True for one that gets nothing."""


def served(problem: Problem, short: Collection[str], patience_s: float) -> Served:
    """Score an answer; `short` names the apps that get less than n_min."""
    queue = sorted(problem.apps, key=lambda app: not app.current)  # stable: each group by arrival
    return Served(
        lost=sum(app.n_min for app in problem.apps if app.current and app.id in short),
        aged=tuple(app.id in short for app in problem.apps if not app.current and app.waited_s > patience_s),
        waiting=sum(app.n_min for app in problem.apps if not app.current and app.id in short),
        order=tuple(app.id in short for app in queue),
    )


def changed(problem: Problem, counts: Mapping[str, Mapping[str, int]]) -> int:
    """Return how many apps that ran are not where they were, including those that could not stay."""
    return sum(bool(app.current) and app.current != counts[app.id] for app in problem.apps)


def moved(problem: Problem, counts: Mapping[str, Mapping[str, int]]) -> int:
    """Return how many containers apps that ran start on a node."""
    return sum(
        max(0, count - app.current.get(node, 0))
        for app in problem.apps
        if app.current
        for node, count in counts[app.id].items()
    )


def faults(problem: Problem, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return every rule that an answer breaks, a sentence for each; empty for a valid one.  Computed in integers."""
    if counts.keys() != {app.id for app in problem.apps}:
        return ["its apps are not those of the problem"]
    nodes = {node.id: node for node in problem.nodes if not node.drained}
    free = {name: dict(node.capacity) for name, node in nodes.items()}
    broken = []
    for app in problem.apps:
        given = counts[app.id]
        if app.pinned and given != app.current:
            broken.append(f"app {app.id} is in the middle of an adjustment and was changed")
        if not app.pinned:
            broken += _faults_of(app, given, nodes)
        for node, count in given.items():
            for kind, amount in app.demand.items():
                if amount and node in free:
                    free[node][kind] = free[node].get(kind, 0) - amount * count
    for name, room in free.items():
        broken += [f"node {name} is given {-left} more {kind} than it has" for kind, left in room.items() if left < 0]
    return broken


def _faults_of(app: AppDemand, given: Mapping[str, int], nodes: Mapping[str, NodeRoom]) -> Iterator[str]:
    total = sum(given.values())
    if given and not app.n_min <= total <= app.n_max:
        yield f"app {app.id} gets {total} containers, outside {app.n_min}..{app.n_max}"
    suits = requirement(app.require).matches if app.require else None
    for node, count in given.items():
        if node not in nodes:
            yield f"app {app.id} is placed on node {node}, which takes nothing"
        elif suits is not None and not suits(nodes[node].labels):
            yield f"app {app.id} is placed on node {node}, whose labels do not suit it"
        if count <= 0 or count % app.gang:
            yield f"app {app.id} gets {count} containers on node {node}, which are no whole gangs of {app.gang}"
