"""The state's invariants after every record of a long log, at a cost that follows what lives, not all that ever lived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.invariants import violations
from events.kinds import AppCheckpointed, AppProgressed, PolicyChanged, Round

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events.kinds import Event

_HARMLESS = (AppProgressed, AppCheckpointed)
"""Change how far an app is, of which no invariant speaks, and are most of a log."""
_LEAVING = (Round, PolicyChanged)
"""What apps come, end and leave by."""


class Watch:
    """Asked after each record.  An app that has ended and has nothing left never changes again, so it is looked at once
    more, by the round that ends it, and then no longer."""

    def __init__(self, state: State | None = None) -> None:
        """`state` is that before the first record, none before a log's first."""
        self._live: dict[str, App] = _alive(state) if state else {}

    def after(self, state: State, event: Event) -> list[str]:
        """What is broken, in words; nearly always nothing."""
        if isinstance(event, _HARMLESS):
            return []
        if not isinstance(event, _LEAVING):
            return violations(self._view(state))
        self._live = {**self._live, **_alive(state)}
        found = violations(self._view(state))
        self._live = _alive(state)
        return found

    def _view(self, state: State) -> State:
        """The state with these apps alone; when the first of the others leaves has no meaning there."""
        return msgspec.structs.replace(state, apps=self._live, next_drop_at=0)


def _alive(state: State) -> dict[str, App]:
    """Apps that can still change, in the state's order."""
    return {
        name: app
        for name, app in state.apps.items()
        if not app.ended or not all(generation.ended for generation in app.generations.values())
    }
