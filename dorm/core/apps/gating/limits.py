"""How long an app has run, against `max_runtime` of its spec.

What counts is the time in which a container of it runs, by log times: of each generation from the start of its first
container to the end of its last.  Waiting, being held, pausing after a failure and the gap of a restart do not count;
a live resize interrupts nothing.  A container on a silent node may run, so it counts until its end is known.  Nothing
is counted for an app without a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.gates import RunTime
from dorm.core.state import MOST
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.state import App


def note_started(app: App, now: int) -> None:
    """Note the start of a container at `now` (UTC ns)."""
    runtime = app.run_time
    if isinstance(runtime, RunTime) and not runtime.since:
        runtime.since = now


def note_ended(app: App, now: int) -> None:
    """Note that the last container of a generation has ended at `now` (UTC ns)."""
    runtime = app.run_time
    if isinstance(runtime, RunTime) and runtime.since:
        runtime.ran_ns, runtime.since = min(MOST, runtime.ran_ns + max(0, now - runtime.since)), 0


def ran_ns(app: App, now: int) -> int:
    """Return how long it has run by `now` (UTC ns); 0 for an app without a limit."""
    runtime = app.run_time
    if not isinstance(runtime, RunTime):
        return 0
    return runtime.ran_ns + (max(0, now - runtime.since) if runtime.since else 0)


def ends_at(app: App) -> int | None:
    """Return when its time is over if it keeps running (UTC ns); None while it does not run, and without a limit."""
    runtime, limit_s = app.run_time, app.spec.max_runtime_s
    if not isinstance(runtime, RunTime) or limit_s is None or not runtime.since:
        return None
    return runtime.since + max(0, int(limit_s * SECOND) - runtime.ran_ns)
