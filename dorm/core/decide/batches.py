"""The batch sizes of a decision: which of a policy's choices are worth telling the apps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from dorm.core.state import App, State
    from dorm.policies.problem import Allocation, AppDemand, Problem

STEP = 1.2
"""An app that keeps its containers gets a new batch size only if it differs by this factor: the best size moves a
little with every report of the noise, and goodput is flat around it."""
MOST_BATCHES = 500
"""In one decision; the others follow with the next ones."""


def batches_of(state: State, problem: Problem, answer: Allocation, changing: Collection[str]) -> dict[str, int]:
    """Return the new batch sizes, by app.  `changing` are the apps whose containers this decision changes."""
    found: dict[str, int] = {}
    staying: dict[str, int] = {}
    for demand in problem.apps:
        size = _size(state.apps[demand.id], answer.batches.get(demand.id, 0))
        if not size:
            continue
        if demand.id in changing:
            found[demand.id] = size
        elif _stays(demand, answer) and _differs(size, _has(state.apps[demand.id])):
            staying[demand.id] = size
    return dict(sorted([*found.items(), *staying.items()][:MOST_BATCHES]))


def _size(app: App, size: int) -> int:
    """Return a batch size that the app accepts and does not have; 0 for none."""
    accepts = app.spec.batch
    if accepts is None or not accepts.least <= size <= accepts.most or size == _has(app):
        return 0
    return size


def _has(app: App) -> int:
    assert app.spec.batch is not None, "only an app that accepts several has a batch size"
    return app.batch or app.spec.batch.initial


def _stays(demand: AppDemand, answer: Allocation) -> bool:
    return not demand.pinned and bool(demand.current) and answer.counts.get(demand.id) == demand.holds


def _differs(size: int, before: int) -> bool:
    return max(size, before) >= STEP * min(size, before)
