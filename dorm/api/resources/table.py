"""All routes of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.api.resources import (
    app_stories,
    apps,
    events,
    findings,
    moments,
    nodes,
    output,
    past,
    policy,
    process,
    shared,
    steering,
    sweeps,
)

if TYPE_CHECKING:
    from dorm.api.routes import Route

ROUTES: list[Route] = [
    *apps.ROUTES,
    *app_stories.ROUTES,
    *output.ROUTES,
    *steering.ROUTES,
    *steering.TRY_ROUTES,
    *steering.RESTART_ROUTES,
    *past.CHECKPOINT_ROUTES,
    *sweeps.ROUTES,
    *past.ROUTES,
    *nodes.ROUTES,
    *events.ROUTES,
    *events.DECISION_ROUTES,
    *moments.ROUTES,
    *shared.ROUTES,
    *findings.ROUTES,
    *policy.ROUTES,
    *policy.PLAN_ROUTES,
    *policy.WHATIF_ROUTES,
    *process.SESSION_ROUTES,
    *past.USAGE_ROUTES,
    *process.ROUTES,
    *process.METRICS_ROUTES,
]
