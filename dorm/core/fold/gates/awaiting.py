"""The gates of a new app, and the effect of an app's end on apps that wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.app import Awaited, Gates, Hold, RunTime
from dorm.core.apps.gating.gates import close, hold, open_again
from events.spec.gates import awaited, starts_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.state import App, State
    from events.spec.gates import After

SUBMITTED_HELD = "submitted so"
"""The reason of a hold that the spec asks for."""


def close_gates(state: State, app: App, ids: Sequence[str]) -> None:
    """Close the gates that an accepted app's spec asks for, and begin to measure its time.  `ids` are of the apps that it
    waits for, one for each entry of `after` in its spec."""
    spec = app.spec
    start, after = starts_at(spec, app.submitted_at), links(state, app, awaited(spec), ids)
    if spec.hold or after or start > state.time:
        app.gates = Gates(after=after)
    if isinstance(app.gates, Gates) and start > state.time:
        app.gates.starts_at = app.waiting_since = start
        app.gates.closed_ns = start - app.submitted_at
    if spec.hold:
        hold(app, Hold(app.user, state.time, SUBMITTED_HELD), state.time)
    close(app, state.time)
    if spec.max_runtime_s is not None:
        app.run_time = RunTime()


def links(state: State, app: App, entries: Sequence[After], ids: Sequence[str]) -> list[Awaited]:
    """Return the gates for the entries of `after`, whose apps are `ids`, and note that the app waits for each."""
    found = []
    for one, id in zip(entries, ids, strict=False):
        other = state.apps.get(id)
        if other is None or other is app:
            continue  # No master publishes this.
        if not other.ended:
            other.awaited_by = [*(other.awaited_by or []), app.id]
        found.append(Awaited("" if other.ended else id, other.name, one.when, other.ended))
    return found


def note_end(state: State, app: App) -> None:
    """The app has ended: note how for each that waits for it."""
    waiting, app.awaited_by = app.awaited_by, msgspec.UNSET
    for id in waiting or ():
        other = state.apps.get(id)
        if other is None or other.ended or not isinstance(other.gates, Gates):
            continue
        other.gates.after = [
            Awaited("", one.name, one.when, app.ended) if one.app == app.id else one for one in other.gates.after
        ]
        open_again(other, state.time)
