"""Requests of operators, except settings: drains, forgotten nodes, a pause of all scheduling; and requests about one
app.

drain      empty a node; in maintenance it may be silent too.  It stays so through restarts of its agent, until it is undone
forget     remove a node of which nothing can run any more.  One that may still run something stays: its room is not free
trust      a suspect node takes new containers again, and the failures there are forgotten
pause      no allocation is computed.  Answers, ends, failures and releases go on, so what was decided is carried out
cancel     an app that has not ended ends with the master's next round; a submission that waits for its answer is refused
kill       what still runs of an app ends at once: the request is noted, the master answers it with `AppKilled` in its next
           round, and agents follow that
retry      the pause of an app after a failure is over; so is the rest of a live app that has lost members"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dorm.core import faults
from dorm.core.authority import submission_of_request
from dorm.core.effects import mark_dirty, request_rebalance, void_plans_on
from dorm.core.folded import APP_PARTS, APPLIED, EVERYTHING, NODE, Effect, ignored, touching
from dorm.core.shared_folder import settle_folder
from dorm.core.state import Pause
from dorm.core.submissions import app_of_request
from events import subjects
from events.limits import clipped

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events import kinds as k
    from events.log.records import Record


def drain_requested(state: State, event: k.NodeDrainRequested, record: Record) -> Effect:
    node = state.nodes.get(event.node)
    wanted: Literal["", "operator", "maintenance", "shutdown"] = "maintenance" if event.maintenance else "operator"
    if event.until_rejoin:
        wanted = "shutdown"
    if not event.drain:
        wanted = ""
    stale = node is not None and wanted == "shutdown" and event.identity != node.identity
    if node is None or stale or node.draining == wanted:
        return ignored(state)
    if (wanted == "shutdown" and node.draining) or (wanted == "operator" and node.draining == "maintenance"):
        return ignored(state)  # It is drained already, by a request that lasts longer or says more.
    node.draining = wanted
    node.changed_seq = state.seq
    if node.usable:
        request_rebalance(state)
        mark_dirty(state)
    else:
        void_plans_on(state, node)
    return NODE


def may_be_forgotten(state: State, name: str) -> bool:
    """Return whether a node is known and no container on it can run any more: it has left, or its lease has ended."""
    node = state.nodes.get(name)
    return node is not None and node.gone


def forget_requested(state: State, event: k.NodeForgetRequested, record: Record) -> Effect:
    if not may_be_forgotten(state, event.node):
        return ignored(state)
    void_plans_on(state, state.nodes[event.node])
    del state.nodes[event.node]
    settle_folder(state)
    mark_dirty(state)
    return NODE


def may_be_trusted(state: State, name: str) -> bool:
    """Return whether a node is suspect, or apps failed there lately."""
    node = state.nodes.get(name)
    return node is not None and (node.suspect is not None or bool(node.failed))


def trust_requested(state: State, event: k.NodeTrustRequested, record: Record) -> Effect:
    if not faults.trusted(state, event.node, "operator"):
        return ignored(state)
    state.nodes[event.node].changed_seq = state.seq
    request_rebalance(state)
    mark_dirty(state)
    return NODE


def scheduling_paused(state: State, event: k.SchedulingPaused, record: Record) -> Effect:
    if state.paused is not None:
        return ignored(state)
    by = subjects.author_of(record.subject, event.by)
    state.paused = Pause(seq=state.seq, at=state.time, by=by, reason=clipped(event.reason))
    return EVERYTHING


def scheduling_resumed(state: State, event: k.SchedulingResumed, record: Record) -> Effect:
    if state.paused is None:
        return ignored(state)
    state.paused = None
    request_rebalance(state)
    mark_dirty(state)
    return EVERYTHING


def request_kill(state: State, app: App) -> bool:
    """Note a request; return whether it changes anything. An ended app without running containers is not killed."""
    if app.kill or (app.ended and not app.stopping):
        return False
    app.kill, app.changed_seq = "requested", state.seq
    return True


def app_killed(state: State, event: k.AppKilled) -> Effect:
    app = state.apps.get(event.app)
    if app is None or app.kill == "ordered":
        return ignored(state)
    app.kill = "ordered"
    return APP_PARTS


def cancel_requested(state: State, event: k.AppCancelRequested, record: Record) -> Effect:
    who = subjects.who_of(record.subject)
    app = app_of_request(state, event.app, who)
    kills = event.kill and app is not None and request_kill(state, app)
    if app is not None and not app.ended and not app.cancel_requested:
        app.cancel_requested, app.cancel_reason, app.changed_seq = True, clipped(event.reason), state.seq
        return touching(app)
    if app is not None and kills:
        return touching(app)
    submission = submission_of_request(state, event.app, who)
    if submission is None:
        return ignored(state)
    submission.refused = clipped(event.reason) or "it was cancelled before it was accepted"
    submission.refused_code = "submission.cancelled"
    return APPLIED


def may_be_retried(state: State, app: App) -> bool:
    """Return whether the app pauses, or rests, for longer than now."""
    current = app.current
    if app.ended or app.cancel_requested:
        return False
    return current.rests_until > state.time if current is not None else app.retry_at > state.time


def retry_requested(state: State, event: k.AppRetryRequested, record: Record) -> Effect:
    app = app_of_request(state, event.app, subjects.who_of(record.subject))
    if app is None or not may_be_retried(state, app):
        return ignored(state)
    if app.current is not None:
        app.current.rests_until = state.time
    else:
        app.retry_at = state.time
        app.waiting_since = min(app.waiting_since, state.time)
    mark_dirty(state)
    return touching(app)
