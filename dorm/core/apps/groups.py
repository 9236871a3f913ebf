"""Which apps of a group may not start yet: at most `parallel` of them have a place at once.

The limit is that of the apps' specs until an edit of one of them changes it: `App.parallel` of all of them then, and of those
that are submitted later to the same run of the group.  One that is lowered stops nothing that runs.

The limit counts an app from its first place to the end of its last container, so also while it pauses after a failure, or is
held.  The others wait in order of their arrival; one with a closed gate (`dorm.core.apps.gating`) takes no turn.  To policies
they do not exist: nothing is reserved for them, and no share is computed for them.  Which ones they are follows from the apps
and the time alone.  The fold notes the reason, and that they do not wait for room: patience counts from when their turn comes
(`dorm.core.fold.reasons`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.apps.gating.gates import closed
from events.kinds import Waiting

if TYPE_CHECKING:
    from dorm.core.state import App, State

CODE = "group"
"""Of the reason why such an app waits."""


def held_back(state: State, now: int) -> dict[str, Waiting]:
    """Return by app why it may not start at `now` (UTC ns), for those that their group's limit keeps waiting."""
    groups: dict[tuple[str, str], list[App]] = {}
    for app in state.apps.values():
        group = app.spec.group
        if group is not None and limit_of(app) and (not app.ended or app.stopping):
            groups.setdefault((app.tenant, group.name), []).append(app)
    found: dict[str, Waiting] = {}
    for members in groups.values():
        found |= _held_back(members, now)
    return found


def limit_of(app: App) -> int:
    """Return how many apps of its group may run at once; 0 for no limit, and for an app of no group."""
    if isinstance(app.parallel, int):
        return app.parallel
    return app.spec.group.parallel if app.spec.group is not None else 0


def same_run(app: App, other: App) -> bool:
    """Return whether two apps were submitted as parts of one group."""
    one, two = app.spec.group, other.spec.group
    if one is None or two is None or (one.name, one.run) != (two.name, two.run):
        return False
    return app.tenant == other.tenant  # Last, for it has to be computed.


def _held_back(members: list[App], now: int) -> dict[str, Waiting]:
    """Return those of one group.  If its apps state different limits, the least of them holds."""
    limits = [limit_of(app) for app in members if not app.ended]
    if not limits:
        return {}
    least = min(limits)
    waiting = [app for app in members if not (app.ended or app.generation)]
    free = max(0, least - (len(members) - len(waiting)))
    waiting = [app for app in waiting if not closed(app, now)]
    waiting.sort(key=lambda app: (app.seq, app.id))
    reason = Waiting(code=CODE, text=f"at most {least} of its group run at once")
    return {app.id: reason for app in waiting[free:]}
