"""From counts by node to the `Allocation` that a decision records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import integer, reasons, scoring
from dorm.policies.problem import Allocation

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Instance, Rows
    from dorm.policies.problem import Reason
    from dorm.policies.scoring import Terms


def allocation(
    instance: Instance, rows: Rows, terms: Terms, *, status: str, bound: float, held_back: Flags
) -> Allocation:
    """Return the optimizer's answer, with reasons."""
    return assemble(
        instance,
        rows,
        reasons=reasons.explain(instance, rows, terms, held_back=held_back, status=status),
        fairness_budget=terms.loss_budget,
        excess=scoring.score(instance, rows, terms).excess,
        overhead_budget=terms.change_budget,
        status=status,
        bound=bound,
        change_cost=scoring.change_cost(instance, rows, terms),
    )


def by_rule(instance: Instance, rows: Rows, reasons: dict[str, Reason]) -> Allocation:
    """Return the answer of a policy with its own rule, which bounds neither fairness loss nor changes."""
    return assemble(
        instance,
        rows,
        reasons=reasons,
        fairness_budget=-1.0,
        excess=0.0,
        overhead_budget=-1,
        status="optimal",
        bound=integer.utilization(instance, integer.counts_of(rows)),
        change_cost=0.0,
    )


def assemble(
    instance: Instance,
    rows: Rows,
    *,
    reasons: dict[str, Reason],
    fairness_budget: float,
    excess: float,
    overhead_budget: int,
    status: str,
    bound: float,
    change_cost: float,
) -> Allocation:
    n = integer.counts_of(rows)
    counts = {app.id: _counts(instance, rows[row], row) for row, app in enumerate(instance.apps)}
    shortage = {}
    for row in np.flatnonzero(~instance.pinned & (n < instance.n_min)).tolist():
        shortage[instance.apps[row].id] = instance.apps[row].n_min - int(n[row] * instance.gang[row])
    return Allocation(
        counts=counts,
        reasons=reasons,
        utilization=integer.utilization(instance, n),
        fairness_loss=integer.loss(instance, n, integer.theoretical_shares(instance, instance.possible)),
        fairness_budget=fairness_budget,
        excess=excess,
        overhead=int((integer.changed(instance, rows) & instance.kept & ~instance.absent).sum()),
        overhead_budget=overhead_budget,
        shortage=shortage,
        status=status,
        bound=bound,
        change_cost=change_cost,
    )


def _counts(instance: Instance, row: dict[int, int], app: int) -> dict[str, int]:
    """A pinned app also keeps its containers on nodes that are gone: nothing about it is decided now."""
    if instance.pinned[app]:
        return dict(sorted(instance.apps[app].current.items()))
    gang, nodes = int(instance.gang[app]), instance.nodes
    return {nodes[node]: row[node] * gang for node in sorted(row)}
