"""Consequences of gates.

stops   an app with a closed gate gives its containers back: a decision stops it as it would by a policy's answer
over    an app whose gate will never open ends, and so does one that has run for as long as it may
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dorm.core.apps.gating.awaiting import cannot
from dorm.core.apps.gating.gates import broken, closed
from dorm.core.deadlines import ends_at
from dorm.core.round_size import LARGEST_CHANGES, first_that_fit, size
from events.kinds import AppCancelled, Resize

if TYPE_CHECKING:
    from dorm.core.state import App, State


class Stops(NamedTuple):
    """The part of a decision about apps that have to stop because a gate is closed."""

    changes: list[Resize]
    put_off: int
    """How many more there are than fit; they come with the next decision."""

    @property
    def size(self) -> int:
        """Bytes in a message."""
        return sum(map(size, self.changes))


def stops(state: State, now: int) -> Stops:
    """Return the adjustments at `now` (UTC ns), in order of arrival.  An app in the middle of an adjustment stops
    too: its hold need not wait for its start."""
    found = [
        Resize(
            app=app.id,
            from_generation=app.generation,
            to_generation=app.generation + 1,
            placement=[],
            adjustment="stop",
        )
        for app in state.live_apps()
        if app.current is not None and not app.cancel_requested and closed(app, now)
    ]
    fitting = first_that_fit(found, LARGEST_CHANGES // 2)
    return Stops(fitting, len(found) - len(fitting))


def over(app: App, now: int) -> AppCancelled | None:
    """Return the end at `now` (UTC ns) of an app that cannot continue because of its spec; None if it can."""
    one, end = broken(app), ends_at(app)
    if one is not None:
        reason, code = f"{cannot(one)}, and {app.name} was to run once it had {one.when}", "after"
    elif end is not None and end <= now:
        reason, code = f"it has run for {app.spec.max_runtime}, as long as it may (max_runtime)", "max_runtime"
    else:
        return None
    return AppCancelled(app=app.id, generation=app.generation, reason=reason, code=code)
