"""The state's invariants after every record of a long log, at a cost that depends on live apps, not on all that ever ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.invariants import violations
from events.kinds import AppCheckpointed, AppProgressed, PolicyChanged, Round

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events.kinds import Event

_HARMLESS = (AppProgressed, AppCheckpointed)
"""Events that change only how far an app is, which no invariant covers; they are most of a log."""
_LEAVING = (Round, PolicyChanged)
"""Events by which apps come, end and leave."""


class Watch:
    """Checks after each record.  An app that has ended and holds nothing never changes again, so it is checked once more, at
    the round that ends it, and then no longer."""

    def __init__(self, state: State | None = None) -> None:
        """`state` is that before the first record, None at the start of a log."""
        self._live: dict[str, App] = _alive(state) if state else {}

    def after(self, state: State, event: Event) -> list[str]:
        """Return the broken invariants, in words; nearly always none."""
        if isinstance(event, _HARMLESS):
            return []
        if not isinstance(event, _LEAVING):
            return violations(self._view(state))
        self._live = {**self._live, **_alive(state)}
        found = violations(self._view(state))
        self._live = _alive(state)
        return found

    def _view(self, state: State) -> State:
        """Return the state with these apps alone; `next_drop_at` is meaningless there."""
        return msgspec.structs.replace(state, apps=self._live, next_drop_at=0)


def _alive(state: State) -> dict[str, App]:
    """Return the apps that can still change, in the state's order."""
    return {
        name: app
        for name, app in state.apps.items()
        if not app.ended or not all(generation.ended for generation in app.generations.values())
    }
