"""The policy `oasis`: apps are admitted by prices, and each admitted one runs by its plan.

Bao et al., INFOCOM 2018; see the package.  Numbers of containers vary by slot, so an app may be resized, or paused, if others
are worth more.  Room that plans leave free stays free: prices keep it for later apps.

An app declares in its spec the worth of its completion (`utility`) and its work (`work`, or `steps` with `speed`).
An app without these is worth its weight, less the later it is done, and has `assumed_s` of work left each time it is planned
(`planning`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.policies import answer, integer, laboratory, reasons
from dorm.policies.problem import Reason
from dorm_lab.policies.oasis.planning import Planner, Settings
from events.quantities import CPU, MEMORY

if TYPE_CHECKING:
    from dorm.policies.integer import Instance
    from dorm.policies.problem import Allocation, Plan, Problem
    from dorm_lab.policies.oasis.planning import Refusal


MOST_PRICES = 4
"""Kinds of resources that a refusal names: the most expensive ones."""
_EACH = {CPU: "a core", MEMORY: "a GiB"}


class OasisPolicy:
    """Parameters:

    `slot_s` (600)      seconds of a slot: counts change only between slots
    `slots` (144)       the horizon: an app is admitted only if it can be done within this many slots
    `assumed_s` (3600)  seconds of work, on one worker, that are assumed for an app that declares none
    """

    name = "oasis"
    version = 1

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = self.check_params(params)
        planner = Planner(problem, Settings(settings["slot_s"], int(settings["slots"]), settings["assumed_s"]))
        instance = planner.instance
        rows = [
            dict(held) if pinned else row
            for row, held, pinned in zip(planner.rows, instance.rows, instance.pinned.tolist(), strict=True)
        ]
        allocation = answer.by_rule(instance, rows, _explain(instance, planner, rows))
        plans = {instance.apps[app].id: plan for app, plan in sorted(planner.plans.items())}
        return msgspec.structs.replace(allocation, plans=plans)


def _explain(instance: Instance, planner: Planner, rows: integer.Rows) -> dict[str, Reason]:
    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if app in planner.refused:
            return Reason("price", _refused(planner.refused[app]))
        if app in planner.endless:
            within = f"its work can't be done within {_time(planner.settings.slots * planner.settings.slot_s)}"
            short = None if units else reasons.no_room(instance, room, app, int(instance.n_min[app]), "n_min")
            text = f"it goes on without a plan: {within}" if units else f"refused: {within}"
            return Reason("price", f"{text}; {short.text}" if short else text)
        return _by_plan(planner.plans[app], planner.now_s, units * int(instance.gang[app]))

    return reasons.by_rule(instance, rows, why)


def _refused(refusal: Refusal) -> str:
    """Return why an app is refused, with the price of each resource that it needs."""
    done_s, worth, cost, prices = refusal
    text = f"refused: its best schedule, done in {_time(done_s)}, is worth {worth:.3g} and costs {cost:.3g} at present prices"
    parts = [
        f"{price.kind} {price.cost:.3g} ({price.each:.3g} {_EACH.get(price.kind, 'each')} in a slot, {price.full:.0%} full)"
        for price in prices[:MOST_PRICES]
    ]
    return f"{text}: {', '.join(parts)}"


def _by_plan(plan: Plan, now_s: float, count: int) -> Reason:
    until_s = plan.slots[-1].at_s - now_s
    figures = f"worth {plan.worth:.3g} at a cost of {plan.cost:.3g}"
    if count:
        return Reason("price", f"its plan gives it {count} now and is done in {_time(until_s)}, {figures}")
    starts = [slot.at_s - now_s for slot in plan.slots if slot.counts and slot.at_s > now_s]
    when = f"starts in {_time(starts[0])}" if starts else "starts when its room is free"
    return Reason("queue", f"admitted: its plan {when} and is done in {_time(until_s)}, {figures}")


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
