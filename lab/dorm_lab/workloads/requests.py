"""The containers of a trace's jobs, as counts of policies that give every app the same fixed number for all its life.

Such policies (`static`, `tiresias`) take counts by prefixes of ids.  So apps get names that start with their count,
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
    """Return the prefix of the names of apps that had this many containers."""
    return f"x{count}-"


def by_request(workload: Workload) -> tuple[Workload, dict[str, int]]:
    """Return the workload with such names, and the matching parameter `counts`; empty if nothing is known."""
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
