"""The fold of edits and restarts.

A request waits for the master's answer, as a submission does (`dorm.core.apps.steering`).  The answer changes:

    AppRevised     at once: bounds, weight, limits; and everything of an app that waits, pauses, or has failed.  An app that
                   runs keeps what its containers were started with, and takes up the rest with its next generation.  That
                   begins with the next decision, since a pending revision asks for a restart (`App.restart_wanted`)
    AppRestarted   an app that runs is restarted by the next decision; one that pauses is tried now; one that has ended, and
                   has not completed, is alive again under its id and its name

Failures are forgiven by a restart, and by an edit that needs one.  What an app owes its neighbors (`dorm.core.sizes`) is
not: neither may cost others more than a retry does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from dorm.core.app import MOST_REVISIONS, Asked, Earlier, Restart, Revision, Revisions
from dorm.core.effects import interrupt, mark_dirty, mark_wait, plan_drops
from dorm.core.gates import apply_edit, has_started
from dorm.core.state import Submission
from dorm.core.submissions import app_of_request, queue, queue_refused
from events import kinds as k
from events import subjects
from events.limits import clipped
from events.spec import can_be_read
from events.spec.editing import BEFORE_START, NEVER, same_group

if TYPE_CHECKING:
    from dorm.core.folded import Folded
    from dorm.core.state import App, Generation, State
    from events.log.records import Record
    from events.spec import AppSpec


# --- requests -----------------------------------------------------------------------------------------------------------


def edit_requested(state: State, event: k.AppEditRequested, record: Record) -> Folded:
    return _ask(state, event, record, Asked("edit", made_from=event.made_from), event.spec)


def restart_requested(state: State, event: k.AppRestartRequested, record: Record) -> Folded:
    return _ask(state, event, record, Asked("restart", fresh=event.fresh, reason=clipped(event.reason)), None)


def _ask(
    state: State, event: k.AppEditRequested | k.AppRestartRequested, record: Record, asked: Asked, spec: object
) -> Folded:
    app = app_of_request(state, event.app, subjects.who_of(record.subject))
    if app is None:
        why = f"there is no app {event.app[:100]!r}; `dorm ps --all` lists those that the cluster keeps"
        queued = queue_refused(state, event, record, why, "app.not_found", app=event.app)
        return "refused" if queued == "applied" else queued
    waiting = Submission(
        id=event.id,
        seq=state.seq,
        at=state.time,
        by=event.by,
        spec=spec,
        size=len(record.body),
        app=app.id,
        asked=asked,
    )
    return queue(state, waiting, record)


def overtake_edits(state: State, app: App) -> None:
    """An update has changed what waiting edits of the app were made from, so they are refused."""
    for waiting in state.submissions.values():
        if (
            waiting.app == app.id
            and waiting.asked is not UNSET
            and waiting.asked.what == "edit"
            and not waiting.refused
        ):
            waiting.refused = f"{app.name} was updated meanwhile; edit what it has now"
            waiting.refused_code = "edit.stale"


# --- answers ------------------------------------------------------------------------------------------------------------


def app_revised(state: State, event: k.AppRevised) -> None:
    waiting = state.submissions.get(event.submission)
    if waiting is not None and waiting.refused:  # It was overtaken between the decision's basis and its round.
        state.counters.ignored += 1
        return
    state.submissions.pop(event.submission, None)
    app, latest = state.apps.get(event.app), event.next or event.spec
    if app is None or app.ended == "completed" or event.revision != app.revision + 1 or not _is_of(app, event):
        state.counters.ignored += 1
        return
    known = app.revisions = app.revisions or Revisions(1, 1)
    known.latest = event.revision
    edit = Revision(event.revision, state.seq, state.time, event.editor, list(event.changed))
    known.history = [*known.history, edit][-MOST_REVISIONS:]
    if (app.n_min, app.n_max) != (latest.n_min, latest.n_max):
        app.size_request = None
    app.n_min, app.n_max, app.weight = latest.n_min, latest.n_max, latest.weight
    app.held_most = app.held_least = None
    app.failed_trials = 0
    current = app.current if not app.ended else None
    before = app.spec
    if current is not None and current.released and event.next is not None:
        known.pending, app.spec = event.next, event.spec
    else:
        if event.restarts and current is not None and not current.released:
            _void(state, app, current)
        known.pending = None
        _take(app, known, latest, restarts=event.restarts)
    apply_edit(state, app, before, event)
    if event.restarts:
        _forgive(app)
        _try_now(state, app)
    mark_dirty(state)


def _is_of(app: App, event: k.AppRevised) -> bool:
    specs = [event.spec, *([event.next] if event.next is not None else [])]
    kept = (*NEVER, *BEFORE_START) if has_started(app) else NEVER
    return all(
        can_be_read(spec)
        and same_group(app.spec, spec)
        and all(getattr(spec, name) == getattr(app.spec, name) for name in kept)
        for spec in specs
    )


def _void(state: State, app: App, generation: Generation) -> None:
    """Place it again: none of its containers has started, so none has to be stopped for the new spec."""
    generation.void = True
    app.changed_seq = state.seq
    if not app.waiting_since and any(one.released for one in app.generations.values()):
        interrupt(state, app)
    mark_wait(state, app)


def _take(app: App, known: Revisions, spec: AppSpec, *, restarts: bool) -> None:
    """From here on it has this spec; containers that may still run keep the spec that they were started with."""
    before = app.spec
    if restarts:
        if known.earlier is None and any(one.released and not one.ended for one in app.generations.values()):
            known.earlier = Earlier(before, known.in_force)
        if before.batch != spec.batch:
            app.batch = 0
        app.demand, app.speeds = spec.resources(), []
    app.spec, known.in_force = spec, known.latest


def app_restarted(state: State, event: k.AppRestarted) -> None:
    state.submissions.pop(event.submission, None)
    app = state.apps.get(event.app)
    if app is None or app.cancel_requested > bool(app.ended) or (app.ended and not _revive(state, app, event)):
        state.counters.ignored += 1
        return
    _forgive(app)
    current = app.current
    # An adjustment that was decided and has not begun serves as the restart.
    seq = state.seq if current is None or current.released else current.decided_seq - 1
    if current is not None or event.fresh:
        app.restart = Restart(seq, event.fresh, event.editor)
    _try_now(state, app)
    mark_dirty(state)


def _revive(state: State, app: App, event: k.AppRestarted) -> bool:
    """Return whether an ended app resumes."""
    if event.spec is None or app.ended == "completed" or app.name_key in state.names or app.stopping:
        return False
    app.ended, app.ended_at, app.end_reason = "", 0, ""
    app.cancel_requested, app.cancel_reason, app.kill = False, "", UNSET
    app.interrupted_at, app.missed_live = 0, False
    for generation in app.generations.values():
        generation.failed = True
    app.waiting, app.waiting_since = None, state.time
    state.names[app.name_key] = app.id
    plan_drops(state)
    return True


def _forgive(app: App) -> None:
    app.retries_used, app.failures_in_a_row, app.port_failures, app.failed_trials = {}, 0, 0, 0
    app.held_most = app.held_least = None
    app.ran_ns = 0


def _try_now(state: State, app: App) -> None:
    if app.ended:
        return
    if app.current is not None:
        app.current.rests_until = min(app.current.rests_until, state.time)
    elif app.retry_at > state.time:
        app.retry_at = state.time
        app.waiting_since = min(app.waiting_since, state.time)


# --- generations --------------------------------------------------------------------------------------------------------


def take_pending(app: App) -> int | UnsetType:
    """Give the next generation, which is being decided, the latest spec; return its revision."""
    known = app.revisions
    if known is UNSET:
        return UNSET
    if known.pending is not None:
        pending, known.pending = known.pending, None
        _take(app, known, pending, restarts=True)
    return known.in_force


def released(app: App, generation: Generation) -> None:
    """Note that a generation is released, and that all earlier ones have ended."""
    if app.starts_fresh(generation):
        app.checkpoint, app.checkpoint_in, app.doubt = None, "", UNSET
    if app.restart is not UNSET and generation.decided_seq > app.restart.seq:
        app.restart = UNSET
    if app.revisions is not UNSET:
        app.revisions.earlier = None
