"""Kills: an operator ends what still runs of an app at once, also where its grace time would take an hour.

A request is noted, the master answers it with `AppKilled` in its next round, and agents follow that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

if TYPE_CHECKING:
    from dorm.core.app import App
    from dorm.core.state import State
    from events.kinds import AppKilled


def request_kill(state: State, app: App) -> bool:
    """Note a request; return whether it changes anything.  An app that has ended and of which nothing runs is not killed."""
    if app.kill is not UNSET or (app.ended and not app.stopping):
        return False
    app.kill, app.changed_seq = "requested", state.seq
    return True


def app_killed(state: State, event: AppKilled) -> None:
    app = state.apps.get(event.app)
    if app is None or app.kill == "ordered":
        state.counters.ignored += 1
        return
    app.kill = "ordered"
