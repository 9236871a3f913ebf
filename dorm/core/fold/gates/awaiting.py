"""Apps that wait for others: the links from an acceptance on, and what an end means for those that wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.apps.gates import close, open_again
from dorm.core.gates import Awaited, Gates
from events.spec.gates import awaited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.state import App, State


def wait_for(state: State, app: App, ids: Sequence[str]) -> None:
    """Close the gates of an accepted app that waits for the apps with these ids, one for each entry of `after` in its spec."""
    found = []
    for one, id in zip(awaited(app.spec), ids, strict=False):
        other = state.apps.get(id)
        if other is None or other is app:
            continue  # No master says so.
        if not other.ended:
            other.awaited_by = [*(other.awaited_by or []), app.id]
        found.append(Awaited("" if other.ended else id, other.name, one.when, other.ended))
    if found:
        gates = app.gates = app.gates if isinstance(app.gates, Gates) else Gates()
        gates.after = found
        close(app, state.time)


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
