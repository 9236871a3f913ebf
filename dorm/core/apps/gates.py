"""Gates: whether an app may run at all now.

    hold    its owner or an operator holds it (`dorm hold`, `hold: true` in its spec), until it is released

An app with a closed gate is no demand: policies are not asked about it, so no share is reserved for it, and the time for which
it is closed counts neither as a wait (`App.waiting_since`) nor as an age (`age_ns`).  If it runs, the next decision stops it
by the usual adjustment, with a checkpoint (`dorm.core.decide.gates`); nothing of it is released meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from dorm.core.gates import Gates, Hold

if TYPE_CHECKING:
    from dorm.core.state import App


def closed(app: App, now: int) -> bool:
    """Return whether a gate of the app is closed at `now` (UTC ns)."""
    return app.gates is not UNSET and waits_for_record(app)


def waits_for_record(app: App) -> bool:
    """Return whether a gate is closed that only a record opens."""
    return isinstance(app.gates, Gates) and app.gates.hold is not None


def hold_of(app: App) -> Hold | None:
    """Return who holds the app and why, None where nobody does."""
    return app.gates.hold if isinstance(app.gates, Gates) else None


def closed_since(app: App) -> int:
    """Return since when a gate of the app is closed (log time, UTC ns); 0 where all are open."""
    return app.gates.closed_at if isinstance(app.gates, Gates) else 0


def age_ns(app: App, now: int) -> int:
    """Return how long the app has been able to run by `now` (UTC ns): since its submission, without the time in which a gate
    was closed."""
    age = now - app.submitted_at
    if isinstance(app.gates, Gates):
        age -= app.gates.closed_ns
        age -= max(0, now - app.gates.closed_at) if app.gates.closed_at else 0
    return max(0, age)


def hold(app: App, by: Hold, now: int) -> None:
    """Close the gate: nothing that was decided before counts any more."""
    gates = app.gates = app.gates if isinstance(app.gates, Gates) else Gates()
    gates.hold = by
    gates.closed_at = gates.closed_at or now


def open_again(app: App, now: int) -> bool:
    """Note that a gate may have opened; return whether all have.  The app's wait begins now."""
    gates = app.gates
    if not isinstance(gates, Gates) or waits_for_record(app) or not gates.closed_at:
        return False
    gates.closed_ns += max(0, now - gates.closed_at)
    gates.closed_at = 0
    if app.current is None:
        app.waiting_since = max(now, app.retry_at)
    return True
