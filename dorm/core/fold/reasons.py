"""The fold of a decision's reasons: why each app waits, or is below its n_max."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.round_size import UNSAID

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events import kinds as k


def note_reasons(state: State, event: k.Resized, basis: int) -> None:
    """Note what each live app waits for."""
    reasons = event.reasons
    for app_id in state.names.values():
        app = state.apps[app_id]
        if app_id in reasons:
            # It was considered, so its pause is over and this is what it waits for now.
            app.waiting, app.retry_at = reasons[app_id], 0
        elif event.unsaid and app.seq <= basis and not app.retry_at and _below_n_max(app):
            app.waiting = UNSAID
        elif app.waiting is not None and not app.retry_at:
            app.waiting = None


def _below_n_max(app: App) -> bool:
    return app.current is None or len(app.current.planned) < app.n_max
