"""Promises of a policy that plans ahead: which containers an app will have in each time slot (`AppPlanned`).

    asked      the policy gets what an app is worth to its owner, the work that is left, and what was promised to it
               (`planned_ahead`)
    recorded   a plan that differs from the one on the log becomes a fact, once (`promises`).  Those that do not fit
               into one decision come with the next one, which follows at once, and neither their apps' plans nor their
               containers change before: the log would show containers that no plan explains
    kept       until the policy makes another or withdraws it, or until another policy is set, which has promised
               nothing (`forget_plans`)

The next slot of a plan is a time at which the policy is asked (`dorm.core.timing`).  A plan that no policy can
have made is ignored: its slots ascend, and their number and places are bounded, so that no record can make the state
grow without limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.effects import mark_dirty
from dorm.core.folded import APP, Effect, ignored
from dorm.core.round_size import size
from dorm.core.state import Promise
from dorm.policies.problem import Plan, Slot, Utility
from events.kinds import AppPlanned, PlannedSlot
from events.limits import LARGEST_FACTS
from events.quantities import SECOND
from events.spec import server_count

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from dorm.policies.problem import Allocation, Problem
    from events import kinds as k
    from events.spec import AppSpec


# --- the fold ---------------------------------------------------------------------------------------------------------

MOST_SLOTS = 1002
"""Slots of one plan: the longest horizon of any policy, and its end."""
MOST_PLACES = 20_000
"""Nodes named in one plan, over all its slots."""


def app_planned(state: State, event: k.AppPlanned) -> Effect:
    app = state.apps.get(event.app)
    places = sum(len(slot.containers) for slot in event.slots)
    ascending = all(before.at < other.at for before, other in zip(event.slots, event.slots[1:], strict=False))
    if app is None or app.ended or len(event.slots) > MOST_SLOTS or places > MOST_PLACES or not ascending:
        return ignored(state)
    app.plan = Promise(event.slots, event.worth, event.cost, state.seq, state.time) if event.slots else None
    if event.more:
        mark_dirty(state)
    return APP


def forget_plans(state: State) -> None:
    """Another policy decides from here on."""
    for app_id in state.names.values():
        state.apps[app_id].plan = None


# --- decisions --------------------------------------------------------------------------------------------------------

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


# --- the question to a policy -----------------------------------------------------------------------------------------


def planned_ahead(app: App, now: int) -> dict[str, Any]:
    """Return the fields of `AppDemand` at `now` (UTC ns); those that no one has set are left out, as most apps set none."""
    spec, fields = app.spec, dict[str, Any]()
    if spec.utility is not None:
        utility = spec.utility
        fields["utility"] = Utility(utility.worth, utility.decay_per_s, utility.target_s)
    if spec.work is not None:
        fields["chunks"] = spec.work.chunks
        fields["work_s"] = _left_s(app, spec.work.seconds, now)
    if app.plan is not None:
        slots = tuple(Slot(slot.at / SECOND, dict(slot.containers)) for slot in app.plan.slots)
        fields["plan"] = Plan(slots, app.plan.worth, app.plan.cost)
    fields |= _servers(spec)
    return fields


def _left_s(app: App, total_s: float, now: int) -> float:
    """In one worker's time: from the reported steps if the total is declared, otherwise from its attained service."""
    if app.spec.steps:
        return total_s * max(0.0, 1.0 - app.step / app.spec.steps)
    containers = len(app.current.containers) if app.current is not None else 0
    servers = server_count(app.spec.engine, app.spec.engine_options, containers)
    working = (containers - servers) / containers if containers else 1.0
    return max(0.0, total_s - app.served_until(now) / SECOND * working)


def _servers(spec: AppSpec) -> dict[str, int]:
    options = spec.engine_options
    if options.workers_per_server:
        return {"workers_per_server": options.workers_per_server}
    fixed = server_count(spec.engine, options, 1)
    return {"servers": fixed} if fixed else {}
