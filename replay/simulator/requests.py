"""What the jobs of a trace had, as the fixed counts of policies that give every app the same number for all its life.

Such policies (`static`, `tiresias`) take counts by the beginnings of ids.  So apps get names that begin with what they had,
`x4-job-17`, under every policy, since runs are compared by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from replay.simulator.workload import SimulatedApp, Workload

_LONGEST = 48
"""Characters of an app's name (`events.spec`)."""


def prefix(count: int) -> str:
    """How the names of apps begin that had so many."""
    return f"x{count}-"


def by_request(workload: Workload) -> tuple[Workload, dict[str, int]]:
    """The same workload with such names, and the parameter `counts` that goes with them; empty where nothing is known."""
    counts = {f"{prefix(count)}*": count for count in sorted({app.had for app in workload.apps}) if count}
    if not counts:
        return workload, {}
    return msgspec.structs.replace(workload, apps=tuple(_named(app) for app in workload.apps)), counts


def _named(app: SimulatedApp) -> SimulatedApp:
    name = f"{prefix(app.had)}{app.spec.name}"
    if not app.had or len(name) > _LONGEST:
        return app
    return msgspec.structs.replace(app, spec=msgspec.structs.replace(app.spec, name=name))
