"""The order in which waiting apps get their n_min, if not all of them can start: the highest response ratio next, until an app
has waited too long.

    R = w · (waited + service) / service

(Brinch Hansen, "Short-Term Scheduling in Multiprogramming Systems", SOSP 1971.)  `service` is how long the app would run with
n_min.  Of apps that arrive together the shortest starts first, which keeps the mean completion low where many apps wait.

Nobody checks what owners declare, so this order ends: an app that has waited for longer than `patience_s`, and for longer than
its own `service`, comes before all others, and such apps are served by arrival.  So an app whose owner declares too little
work overtakes others for a while and not permanently, and one whose owner declares too much delays only itself.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from dorm.policies import integer
from dorm.policies.speed import curves

if TYPE_CHECKING:
    from dorm.policies.integer import Instance
    from dorm.policies.problem import AppDemand
    from dorm.policies.speed.types import Types

USUAL_S = 3600.0
"""Seconds for which an app runs with n_min if nothing is known about its work."""


def in_order(instance: Instance, types: Types | None, patience_s: float) -> Instance:
    """Return the instance with its waiting apps in the order in which they are served instead of that of arrival.

    Waits count in part where patience is longer than `patience_s`, so that all of them exceed it when it ends."""
    waits = [app for app in instance.arrival if not instance.running[app]]
    if not waits:
        return instance
    service = {app: _service_s(instance, app, types) for app in waits}
    ratio = {app: _ratio(instance.apps[app], service[app]) for app in waits}
    apps = list(instance.apps)
    for app in waits:
        known = instance.apps[app].remaining_steps is not None
        if known and service[app] > patience_s:
            waited_s = instance.apps[app].waited_s * patience_s / service[app]
            apps[app] = msgspec.structs.replace(apps[app], waited_s=waited_s)
    ordered = replace(instance, apps=tuple(apps))
    aged = integer.aged(ordered, patience_s)
    ran = [app for app in instance.arrival if instance.running[app]]
    first = [app for app in waits if aged[app]]
    later = sorted((app for app in waits if not aged[app]), key=lambda app: (-ratio[app], service[app]))
    return replace(ordered, arrival=(*ran, *first, *later))


def _ratio(app: AppDemand, service_s: float) -> float:
    waited_s = app.waited_s if 0 <= app.waited_s < math.inf else 0.0
    weight = app.weight if 0 < app.weight < math.inf else 1.0
    return round(weight * (1.0 + waited_s / service_s), 9)


def _service_s(instance: Instance, row: int, types: Types | None) -> float:
    """Return how long the app would run with n_min, in seconds; at least one second."""
    app = instance.apps[row]
    if app.remaining_steps is None:
        return max(USUAL_S, app.served_s / max(app.gang, 1))
    paces = types.paces.get(row) if types is not None else None
    curve = paces.mixed if paces is not None else curves.curve(app)
    speed = curve.one(max(1, int(instance.n_min[row])))
    return max(1.0, curves.work_s(app, paces) / speed) if speed > 0 else USUAL_S
