"""The fold of reasons: why each app waits, or is below its n_max, by the last decision and by the limit of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core.gates import CODE, held_back
from dorm.core.round_size import UNSAID
from events import kinds as k

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.state import App, State

_ABOUT_GROUPS = (k.AppAccepted, k.AppCancelled, k.AppCompleted, k.AppFailed, k.AppRevised, k.Resized)
"""Facts after which others of a group may be held back, or may start."""


def note_reasons(state: State, event: k.Resized, basis: int) -> None:
    """Note the reason why each live app waits."""
    reasons = event.reasons
    for app_id in state.names.values():
        app = state.apps[app_id]
        if app_id in reasons:
            # The decision considered it, so its pause is over and this is why it waits now.
            app.waiting, app.retry_at = reasons[app_id], 0
        elif event.unsaid and app.seq <= basis and not app.retry_at and _below_n_max(app):
            app.waiting = UNSAID
        elif app.waiting is not None and not app.retry_at:
            app.waiting = None


def _below_n_max(app: App) -> bool:
    return app.current is None or len(app.current.planned) < app.n_max


def note_groups(state: State, facts: Sequence[Any]) -> None:
    """Note after a round which apps their group's limit keeps waiting, and whose turn has come."""
    if not any(isinstance(fact, _ABOUT_GROUPS) for fact in facts):
        return
    members = [app for app_id in state.names.values() if (app := state.apps[app_id]).spec.group is not None]
    if not members:
        return
    reasons = held_back(state, state.time)
    for app in members:
        reason = reasons.get(app.id)
        if reason is not None:
            app.waiting, app.waiting_since = reason, 0
        elif not app.generation and not app.waiting_since:
            app.waiting_since = state.time
            if app.waiting is not None and app.waiting.code == CODE:
                app.waiting = None
