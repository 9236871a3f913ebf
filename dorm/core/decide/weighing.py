"""The scope of an app's weight: against all apps, or within its tenant.

A user chooses the weights of her own apps.  If `weights=apps`, she thereby takes from everybody: an app of weight 9 has
nine times the share of its neighbor.  If `weights=tenants`, all tenants weigh the same, and the weights of a tenant's
apps divide what the tenant has.  Neither a high weight nor more apps then take anything from other tenants.

Weighted max-min fairness is over apps in both cases. If a tenant's app has its maximum, the rest of the tenant's
share goes to all others, not first to the tenant's own apps, so a tenant has at most its share while others can use
theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.settings import weighs_tenants
from dorm.policies.integer import MOST_WEIGHT

if TYPE_CHECKING:
    from dorm.core.state import State
    from dorm.policies.problem import AppDemand


def weighed(state: State, apps: list[AppDemand]) -> list[AppDemand]:
    """Return the apps of a problem with the weights that count, in the same order."""
    if not weighs_tenants(state.settings):
        return apps
    tenants = {app.id: state.apps[app.id].tenant for app in apps}
    sums: dict[str, float] = {}
    for app in apps:
        tenant = tenants[app.id]
        sums[tenant] = sums.get(tenant, 0.0) + _bounded(app.weight)
    return [msgspec.structs.replace(app, weight=_bounded(app.weight) / sums[tenants[app.id]]) for app in apps]


def _bounded(weight: float) -> float:
    """Return the weight, clipped to the range that policies distinguish, so that no sum is infinite."""
    return min(max(weight, 1 / MOST_WEIGHT), MOST_WEIGHT)
