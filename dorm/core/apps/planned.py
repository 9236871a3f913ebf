"""What a policy that plans ahead knows of an app: its worth, the work that is left, and what was promised to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.policies.problem import Plan, Slot, Utility
from events.quantities import SECOND
from events.spec import server_count

if TYPE_CHECKING:
    from dorm.core.state import App
    from events.spec import AppSpec


def planned_ahead(app: App, now: int) -> dict[str, Any]:
    """Return the fields of `AppDemand` at `now` (UTC ns); those that no one has set are left out, as most apps set none."""
    spec, found = app.spec, dict[str, Any]()
    if spec.utility is not None:
        utility = spec.utility
        found["utility"] = Utility(utility.worth, utility.decay_per_s, utility.target_s)
    if spec.work is not None:
        found["chunks"] = spec.work.chunks
        found["work_s"] = _left_s(app, spec.work.seconds, now)
    if app.plan is not None:
        slots = tuple(Slot(one.at / SECOND, dict(one.containers)) for one in app.plan.slots)
        found["plan"] = Plan(slots, app.plan.worth, app.plan.cost)
    found |= _servers(spec)
    return found


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
