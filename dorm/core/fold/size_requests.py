"""The fold of an app's own requests for a size (`dorm.core.apps.size_requests`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.apps.size_requests import request, requested
from dorm.core.fold.effects import mark_dirty
from dorm.core.fold.folded import Folded, ignored
from events import subjects

if TYPE_CHECKING:
    from dorm.core.state import State
    from events import kinds as k
    from events.log.records import Record


def resize_requested(state: State, event: k.AppResizeRequested, record: Record) -> Folded:
    """Believe it from a node that has a part of the app's present generation, and note what it changes."""
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if app is None or generation is None or app.ended or generation is not app.current or not generation.released:
        return ignored(state)
    who = subjects.who_of(record.subject)
    if not any(subjects.token(container.node) == who for container in generation.all_containers()):
        return ignored(state)
    before = requested(app, state.time)
    if not request(app, event.containers, event.reason, state.time):
        return ignored(state)
    after = requested(app, state.time)
    if (before and before[0]) != (after and after[0]):
        mark_dirty(state)
    return "applied"
