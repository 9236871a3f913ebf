"""From a policy's plans to the facts that record them (`AppPlanned`), each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.round_size import size
from events.kinds import AppPlanned, PlannedSlot
from events.limits import LARGEST_FACTS
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.policies.problem import Allocation, Plan, Problem

LARGEST_PLANS = LARGEST_FACTS // 4
"""Bytes of one decision's plans."""


def promises(problem: Problem, answer: Allocation) -> tuple[list[AppPlanned], list[str]]:
    """Return the plans that differ from those on the log, in order of arrival, as many as fit, and the apps whose plans do
    not.  Those change with the next decision, which follows at once.  A plan that does not fit by itself is not recorded: the
    policy makes another each time."""
    new = [
        _planned(app.id, plan)
        for app in problem.apps
        if (plan := answer.plans.get(app.id)) is not None and plan != app.plan and (plan.slots or app.plan is not None)
    ]
    fitting: list[AppPlanned] = []
    later: list[str] = []
    room = LARGEST_PLANS
    for fact in new:
        needed = size(fact)
        if needed <= room and not later:
            fitting.append(fact)
            room -= needed
        elif needed <= LARGEST_PLANS:
            later.append(fact.app)
    if later:
        fitting[-1] = msgspec.structs.replace(fitting[-1], more=len(later))
    return fitting, later


def _planned(app: str, plan: Plan) -> AppPlanned:
    slots = [PlannedSlot(round(slot.at_s * SECOND), slot.counts) for slot in plan.slots]
    return AppPlanned(app=app, slots=slots, worth=plan.worth, cost=plan.cost)
