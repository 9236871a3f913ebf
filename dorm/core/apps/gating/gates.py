"""Gates: whether an app may run at all now.

    hold    its owner or an operator holds it (`dorm hold`, `hold: true` in its spec), until it is released
    start_after   its time has not come
    after   it waits for another app to end (`awaiting` beside this); if that app ends otherwise than it has to, this
            one is cancelled

An app with a closed gate is not a demand: policies are not asked about it, so no share is reserved for it, and the time
for which it is closed counts neither as a wait (`App.waiting_since`) nor as an age (`age_ns`).  If it runs, the next
decision stops it by the usual adjustment, with a checkpoint (`dorm.core.decide.gates`); until then, none of its
containers are released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.app import Gates

if TYPE_CHECKING:
    from dorm.core.app import Awaited, Hold
    from dorm.core.state import App


def closed(app: App, now: int) -> bool:
    """Return whether a gate of the app is closed at `now` (UTC ns)."""
    gates = app.gates
    return isinstance(gates, Gates) and (gates.starts_at > now or waits_for_record(app))


def waits_for_record(app: App) -> bool:
    """Return whether a gate is closed that only a record opens."""
    gates = app.gates
    return isinstance(gates, Gates) and (gates.hold is not None or not all(one.holds for one in gates.after))


def hold_of(app: App) -> Hold | None:
    """Return who holds the app and why, None if it is not held."""
    return app.gates.hold if isinstance(app.gates, Gates) else None


def starts_at(app: App) -> int:
    """Return before when it gets no containers (UTC ns), 0 for any time."""
    return app.gates.starts_at if isinstance(app.gates, Gates) else 0


def still_awaited(app: App) -> list[Awaited]:
    """Return the apps that it still waits for, in the order of its spec."""
    return [one for one in app.gates.after if not one.outcome] if isinstance(app.gates, Gates) else []


def broken(app: App) -> Awaited | None:
    """Return the first awaited app that has not ended as required; None if there is none."""
    after = app.gates.after if isinstance(app.gates, Gates) else []
    return next((one for one in after if one.broken), None)


def closed_since(app: App) -> int:
    """Return since when a gate of the app is closed (log time, UTC ns); 0 if all are open."""
    return app.gates.closed_at if isinstance(app.gates, Gates) else 0


def age_ns(app: App, now: int) -> int:
    """Return how long the app has been able to run at `now` (UTC ns): since its submission, without the time in which
    a gate was closed."""
    age = now - app.submitted_at
    if isinstance(app.gates, Gates):
        age -= app.gates.closed_ns
        age -= max(0, now - app.gates.closed_at) if app.gates.closed_at else 0
    return max(0, age)


def hold(app: App, by: Hold, now: int) -> None:
    """Close the gate of a hold."""
    gates = app.gates = app.gates if isinstance(app.gates, Gates) else Gates()
    gates.hold = by
    close(app, now)


def close(app: App, now: int) -> None:
    """Note that a gate is closed, unless they all are open."""
    if isinstance(app.gates, Gates) and not app.gates.closed_at and waits_for_record(app):
        app.gates.closed_at = max(now, app.gates.starts_at)


def open_again(app: App, now: int) -> bool:
    """Note that a gate may have opened; return whether all have.  The app's wait begins now."""
    gates = app.gates
    if not isinstance(gates, Gates) or waits_for_record(app) or not gates.closed_at:
        return False
    gates.closed_ns += max(0, now - gates.closed_at)
    gates.closed_at = 0
    if app.current is None:
        app.waiting_since = max(now, app.retry_at, gates.starts_at)
    return True
