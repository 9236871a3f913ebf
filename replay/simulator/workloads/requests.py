"""What the jobs of a trace had, as the fixed counts of policies that give every app the same number for all its life.

Such policies (`static`, `tiresias`) take counts by the beginnings of ids.  So apps get names that begin with what they had,
`x4-job-17`, under every policy, since runs are compared by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from replay.simulator.workloads.workload import SimulatedApp, Workload

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
    taken = {app.spec.name for app in workload.apps}
    return msgspec.structs.replace(workload, apps=tuple(_named(app, taken) for app in workload.apps)), counts


def _named(app: SimulatedApp, taken: set[str]) -> SimulatedApp:
    if not app.had:
        return app
    begin = prefix(app.had)
    name = f"{begin}{app.spec.name}"
    if len(name) > _LONGEST:
        name = f"{begin}{app.spec.name[: _LONGEST - len(begin)].rstrip('-')}"
    if name in taken:
        name = f"{begin}line-{app.line}"
    taken.add(name)
    return msgspec.structs.replace(app, spec=msgspec.structs.replace(app.spec, name=name))
