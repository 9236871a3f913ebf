"""Whether an app may be resized: what its owner says (`resizable`), and what the log shows about its checkpoints.

    begins again   an app that has reported no checkpoint loses all its work when it is restarted.  A live app does not, and
                   one whose spec has a command to resume, or to save, is taken at its owner's word until an adjustment has
                   stopped it, and it has still reported none
    priced         the work since its start is part of the cost of resizing such an app (`adjust_s`)
    kept whole     once it has run for `KEPT_FROM_S` in all, it is neither moved nor resized.  There are two exceptions, in
                   which it shrinks, to no less than its n_min: another app would otherwise wait or have less than half its
                   fair share, or this one has more than twice its own.  Of several, those that have run for the shortest time
                   make room (`dorm.core.asking`)
    never          an app with `resizable: never` is kept whole from its start, whatever it reports, and shrinks to no less
                   than its fair share.  If it could keep any size, the first app on an idle cluster would keep all of it from
                   the others.  For the same reason it starts with at most its fair share, or its n_min if that is more

An app is not kept whole when it has to be restarted anyway: by its owner, or because a node of it is drained or gone, its
labels no longer fit, or its bounds no longer admit its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.costs import is_live
from dorm.core.sizes import ran_ns
from dorm.policies.problem import Reason
from events.quantities import SECOND
from events.spec.gates import origin_of

if TYPE_CHECKING:
    from dorm.core.state import App

KEPT_FROM_S = 300
"""Amount of work that a resize may undo, in all: short enough to be repeated, and long enough for apps that are
submitted one after another to find their sizes."""
CHEAP_S = 30.0
"""Amount of work that is not worth a price of its own: a restart is assumed to take as long."""
NO_CHECKPOINT = "no_checkpoint"
NEVER = "not_resizable"


def begins_again(app: App) -> bool:
    """Return whether a restart takes the app back to its beginning, as far as its spec and the log show."""
    if is_live(app):
        return False
    stated = app.spec.resume or app.spec.checkpoint
    if stated and (app.spec.resume == app.spec.command or not app.adjustments):
        return False
    origin = origin_of(app.spec.origin)
    return app.checkpoint is None or (origin is not None and app.checkpoint == origin.step)


def undone_s(app: App, now: int) -> float:
    """Return the seconds of work that a restart at `now` (UTC ns) undoes, because the app has reported no checkpoint; 0 for an
    app that does not run, or does not begin again."""
    current = app.current
    if current is None or not current.started_at or not begins_again(app):
        return 0.0
    return round(max(0, now - current.started_at) / SECOND, 3)


def priced_s(app: App, measured_s: float | None, now: int) -> float | None:
    """Return the cost of resizing the app at `now` (UTC ns), in seconds of its work: the measured cost of an adjustment (None
    if none was measured), and the work that it undoes."""
    undone = undone_s(app, now)
    if undone < CHEAP_S:
        return measured_s
    # The measured cost of an app that reports steps includes the work that earlier adjustments undid.
    pause_s = CHEAP_S if measured_s is None or app.reports_progress else measured_s
    return pause_s + undone


def kept_whole(app: App, now: int) -> Reason | None:
    """Return why a running app is kept whole at `now` (UTC ns); None for one that may be resized, or that does not run."""
    current = app.current
    if current is None or not current.started_at or app.restart_wanted:
        return None
    if app.spec.resizable == "never":
        return Reason(NEVER, "resizable is never in its spec, so it keeps the containers with which it started")
    if not begins_again(app) or ran_ns(app, now) < KEPT_FROM_S * SECOND:
        return None
    minutes = int(undone_s(app, now)) // 60
    ran = f"in the {minutes} min that it has run" if minutes else "yet"
    return Reason(
        NO_CHECKPOINT,
        f"it has reported no checkpoint {ran}, and a resize would restart it from the beginning",
    )
