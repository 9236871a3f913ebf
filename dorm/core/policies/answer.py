"""From a matrix of counts to the `Allocation` that a decision records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.core.policies import integer, reasons
from dorm.core.policies.problem import Allocation

if TYPE_CHECKING:
    from dorm.core.policies.integer import Flags, Instance, Ints, Terms
    from dorm.core.policies.problem import Reason


def allocation(instance: Instance, x: Ints, terms: Terms, *, status: str, bound: float, held_back: Flags) -> Allocation:
    """The optimizer's answer, with reasons."""
    return assemble(
        instance,
        x,
        reasons=reasons.explain(instance, x, terms, held_back=held_back, status=status),
        fairness_budget=terms.loss_budget,
        excess=integer.score(instance, x, terms).excess,
        overhead_budget=terms.change_budget,
        status=status,
        bound=bound,
        change_cost=integer.change_cost(instance, x, terms),
    )


def assemble(
    instance: Instance,
    x: Ints,
    *,
    reasons: dict[str, Reason],
    fairness_budget: float,
    excess: float,
    overhead_budget: int,
    status: str,
    bound: float,
    change_cost: float,
) -> Allocation:
    counts = {app.id: _counts(instance, x, row) for row, app in enumerate(instance.apps)}
    shortage = {
        app.id: int(instance.n_min[row]) - sum(counts[app.id].values())
        for row, app in enumerate(instance.apps)
        if not instance.pinned[row] and sum(counts[app.id].values()) < instance.n_min[row]
    }
    return Allocation(
        counts=counts,
        reasons=reasons,
        utilization=integer.utilization(instance, x),
        fairness_loss=integer.loss(instance, x, integer.theoretical_shares(instance, instance.possible)),
        fairness_budget=fairness_budget,
        excess=excess,
        overhead=int((integer.changed(instance, x) & instance.kept).sum()),
        overhead_budget=overhead_budget,
        shortage=shortage,
        status=status,
        bound=bound,
        change_cost=change_cost,
    )


def _counts(instance: Instance, x: Ints, row: int) -> dict[str, int]:
    """A pinned app keeps its containers on nodes that are gone too: nothing about it is decided now."""
    if instance.pinned[row]:
        return dict(sorted(instance.apps[row].current.items()))
    return {instance.nodes[node]: int(x[row, node]) for node in np.flatnonzero(x[row]).tolist()}
