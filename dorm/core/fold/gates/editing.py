"""The effect of an edit on an app's gates, its time, its origin and the limit of its group.

Gates and origin change before an app has started, its `max_runtime` at any time.  A limit that an edit sets counts
from the start of the containers that run at that time, because nothing was counted before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from dorm.core.app import Awaited, Gates, Hold, RunTime
from dorm.core.apps.gating.editing import has_started
from dorm.core.apps.gating.gates import close, closed_since, waits_for_record
from dorm.core.apps.groups import same_run
from dorm.core.fold.gates.awaiting import links
from dorm.core.submissions import begin
from events.spec.gates import awaited, starts_at

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events import kinds as k
    from events.spec import AppSpec

EDITED_HELD = "edited so"
"""The reason of a hold that an edit asks for."""


def regate(state: State, app: App, before: AppSpec, event: k.AppRevised) -> None:
    """Apply what an edit says beside what containers are started with.  `before` is the spec that was in force."""
    after = app.spec
    if after.max_runtime_s is not None and app.run_time is UNSET and not app.ended:
        app.run_time = RunTime(since=_runs_since(app))
    if after.group is not None and before.group is not None:
        _limit(state, app, app.parallel if isinstance(app.parallel, int) else before.group.parallel)
    if has_started(app):
        return
    if after.origin != before.origin:
        app.checkpoint, app.checkpoint_in = None, ""
        begin(state, app)
    if (after.hold, after.after, after.start_after) != (before.hold, before.after, before.start_after):
        _gates(state, app, before, event)


def _limit(state: State, app: App, before: int) -> None:
    """Give all apps of its group the present limit of the app's spec, if it differs from `before`."""
    limit = app.spec.group.parallel if app.spec.group is not None else 0
    if limit != before:
        for other in state.apps.values():
            if same_run(app, other):
                other.parallel = limit


def join_group(state: State, app: App) -> None:
    """Give a new app the limit of its group if an edit has set one.  All apps of a group have the same, and the latest are
    the likeliest to be of it."""
    if app.spec.group is None:
        return
    other = next((one for one in reversed(state.apps.values()) if one is not app and same_run(app, one)), None)
    if other is not None:
        app.parallel = other.parallel


def _runs_since(app: App) -> int:
    """Return when the first container started of those that run (log time, UTC ns); 0 if none runs."""
    return min((container.started_at for container in app.running_containers()), default=0)


def _gates(state: State, app: App, before: AppSpec, event: k.AppRevised) -> None:
    now, spec = state.time, app.spec
    was_closed = bool(closed_since(app)) or (isinstance(app.gates, Gates) and app.gates.starts_at > now)
    gates = app.gates = app.gates if isinstance(app.gates, Gates) else Gates()
    _open(gates, now)
    gates.after = _awaited(state, app, before, gates.after, event.after)
    start = starts_at(spec, app.submitted_at)
    if start > now:
        gates.starts_at, gates.closed_ns = start, gates.closed_ns + start - now
    if spec.hold != before.hold:
        gates.hold = (gates.hold or Hold(event.editor, now, EDITED_HELD)) if spec.hold else None
    close(app, now)
    if start > now:
        app.waiting_since = start
    elif was_closed and not waits_for_record(app) and app.current is None:
        app.waiting_since = max(now, app.retry_at)


def _open(gates: Gates, now: int) -> None:
    """Add up how long gates were closed until now; time that they would have stayed closed is not counted."""
    if gates.closed_at:
        gates.closed_ns += max(0, now - gates.closed_at)
    if gates.starts_at > now:
        gates.closed_ns -= gates.starts_at - now
    gates.closed_at = gates.starts_at = 0


def _awaited(state: State, app: App, before: AppSpec, gates: list[Awaited], added: list[str]) -> list[Awaited]:
    """Return what it waits for from now on: what stays as it stands, and the apps of `added`, one for each new entry."""
    was = awaited(before)
    stays = dict(zip(was, gates, strict=True)) if len(was) == len(gates) else {}
    wanted = awaited(app.spec)
    for one, gate in stays.items():
        other = state.apps.get(gate.app)
        if one not in wanted and other is not None and isinstance(other.awaited_by, list):
            other.awaited_by = [id for id in other.awaited_by if id != app.id] or UNSET
    fresh = [one for one in wanted if one not in stays]
    return [*(stays[one] for one in wanted if one in stays), *links(state, app, fresh, added)]
