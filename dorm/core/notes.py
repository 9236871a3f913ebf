"""Notes of people about apps.

A state keeps the latest notes of each app, and the log keeps all.  No decision reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.folded import Effect, ignored, touching
from dorm.core.state import Note
from dorm.core.submissions import app_of_request
from events import subjects
from events.limits import clipped

if TYPE_CHECKING:
    from dorm.core.state import State
    from events import kinds as k
    from events.log.records import Record

MOST = 20
"""Notes of an app that a state keeps."""


def app_noted(state: State, event: k.AppNoted, record: Record) -> Effect:
    app = app_of_request(state, event.app, subjects.who_of(record.subject))
    text = clipped(event.text.strip())
    if app is None or not text:
        return ignored(state)
    note = Note(state.seq, state.time, subjects.author_of(record.subject, event.by), text)
    app.notes = [*app.notes, note][-MOST:]
    return touching(app)
