"""Holds and releases: what owners and operators ask, folded at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.app import Gates, Hold
from dorm.core.apps.gating.gates import hold, hold_of, open_again
from dorm.core.effects import mark_dirty, request_rebalance
from dorm.core.folded import Folded, ignored
from dorm.core.submissions import app_of_request
from events import subjects
from events.limits import clipped

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events import kinds as k
    from events.log.records import Record


def is_operators(state: State, app: App, who: str) -> bool:
    """Return whether a hold of the app by `who`, who may change it, is an operator's, because the app belongs to
    another user."""
    known = state.known
    return known is not None and known.tenant_of(who) != app.tenant


def may_be_held(state: State, app: App, who: str) -> bool:
    """Return whether a hold by `who` changes anything.  An operator's replaces the owner's, which then cannot end it."""
    before = hold_of(app)
    if before is not None and (before.operator or not is_operators(state, app, who)):
        return False
    return not app.ended and not app.cancel_requested


def hold_requested(state: State, event: k.AppHoldRequested, record: Record) -> Folded:
    who = subjects.who_of(record.subject)
    app = app_of_request(state, event.app, who)
    if app is None or not may_be_held(state, app, who):
        return ignored(state)
    by, operator = subjects.author_of(record.subject, event.by), is_operators(state, app, who)
    hold(app, Hold(by, state.time, clipped(event.reason), operator=operator), state.time)
    app.changed_seq = state.seq
    if app.current is not None:
        request_rebalance(state)
    mark_dirty(state)
    return "applied"


def release_requested(state: State, event: k.AppReleaseRequested, record: Record) -> Folded:
    app = app_of_request(state, event.app, subjects.who_of(record.subject))
    if app is None or app.ended or hold_of(app) is None:
        return ignored(state)
    assert isinstance(app.gates, Gates)
    app.gates.hold = None
    open_again(app, state.time)
    mark_dirty(state)
    return "applied"
