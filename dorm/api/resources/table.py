"""All routes of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.api.resources import (
    app_stories,
    apps,
    decisions,
    events,
    health,
    metrics,
    moments,
    nodes,
    policy,
    session,
    sweeps,
    usage,
)
from dorm.api.resources.past import checkpoints, history
from dorm.api.resources.steering import restarts, specs, trying

if TYPE_CHECKING:
    from dorm.api.routes import Route

ROUTES: list[Route] = [
    *apps.ROUTES,
    *app_stories.ROUTES,
    *specs.ROUTES,
    *trying.ROUTES,
    *restarts.ROUTES,
    *checkpoints.ROUTES,
    *sweeps.ROUTES,
    *history.ROUTES,
    *nodes.ROUTES,
    *events.ROUTES,
    *decisions.ROUTES,
    *moments.ROUTES,
    *policy.ROUTES,
    *policy.PLAN_ROUTES,
    *policy.WHATIF_ROUTES,
    *session.ROUTES,
    *usage.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
]
