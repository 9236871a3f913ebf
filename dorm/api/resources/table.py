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
    usage,
)
from dorm.api.resources.ahead import plan, whatif

if TYPE_CHECKING:
    from dorm.api.routes import Route

ROUTES: list[Route] = [
    *apps.ROUTES,
    *app_stories.ROUTES,
    *nodes.ROUTES,
    *events.ROUTES,
    *decisions.ROUTES,
    *moments.ROUTES,
    *policy.ROUTES,
    *plan.ROUTES,
    *whatif.ROUTES,
    *session.ROUTES,
    *usage.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
]
