"""Revisions: updates, edits and restarts of existing apps, from the request to the generation that satisfies it.

An update (`AppUpdated`) changes only bounds and weight, which restarts nothing, so the fold applies it at once, or refuses
what would make a running app impossible (`check_update`).

A request waits for the master's answer, as a submission does (`dorm.core.submissions`), because only the master may say
yes.  The answer changes:

    AppRevised     at once: bounds, weight, limits; and everything of an app that waits, pauses, or has failed.  An app
                   that runs keeps what its containers were started with, and takes up the rest with its next
                   generation.  That begins with the next decision, since a pending revision asks for a restart
                   (`App.restart_wanted`)
    AppRestarted   an app that runs is restarted by the next decision; one that pauses is tried now; one that has ended,
                   and has not completed, is alive again under its id and its name

Which requests may be: an edit is checked like a submission, and names the spec on which it is based, so that the second
of two editors has to repeat the edit.  A restart is for an app that runs or pauses, or that has failed or was cancelled
and is still kept.  A completed app has nothing left to do; it can be submitted again.

What holds, and what went wrong without it:

    one spec    all containers of a generation start with one spec, so `App.spec` is what runs and `Revisions.pending`
                what comes.  Containers of an earlier generation that may still run need what they were started with:
                `Revisions.earlier` has it until they have ended, since their room is not free before (`App.needs`)
    in order    revisions are numbered, and an answer that is not about the next number is ignored.  The fold checks
                again what the master may have decided without knowing (`_is_of`): the app may have started, or ended,
                since the basis
    overtaken   an edit whose app was updated between its request and its round changes nothing: it was made from a spec
                that no longer exists (`overtake_edits`)
    void        a generation that is decided and not released is void if the edit needs a restart: none of its
                containers has started, so it is placed again with the new spec instead of being started and stopped
                (`_void`)
    served      an adjustment that was decided and has not begun serves as a restart that is asked for meanwhile;
                otherwise the app would be restarted twice
    names       an ended app comes back only if its name is free and none of its containers may still run

Failures are forgiven by a restart, and by an edit that needs one.  What an app owes its neighbors (`dorm.core.sizes`)
is not: neither may cost others more than a retry does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.admission import check_room
from dorm.core.app import MOST_REVISIONS, Asked, Earlier, Restart, Revision, Revisions
from dorm.core.effects import interrupt, mark_dirty, mark_wait, plan_drops
from dorm.core.faults import forget_failures
from dorm.core.folded import APP_PARTS, APPLIED, REFUSED, Effect, ignored, touching
from dorm.core.gates import apply_edit, check_release, edited_links, has_started
from dorm.core.state import Submission
from dorm.core.submissions import app_of_request, queue, queue_refused, with_origin
from events import kinds as k
from events import subjects
from events.identities import tenant_in
from events.kinds import AppRejected, AppRestarted, AppRevised
from events.limits import clipped
from events.quantities import SECOND
from events.spec import LARGEST_SPEC, SpecError, can_be_read, check_gang, check_roles, check_spec
from events.spec.abilities import EDITS
from events.spec.editing import (
    BEFORE_START,
    NEVER,
    check_same_app,
    differing,
    fingerprint,
    merged,
    same_group,
    same_origin,
)

if TYPE_CHECKING:
    from dorm.core.admission import LiveApps
    from dorm.core.state import App, Generation, State
    from events.log.records import Record
    from events.spec import AppSpec


# --- which requests may be --------------------------------------------------------------------------------------------

_PLACES = ("demand", "n_min", "require", "gang", "volumes", "python", "requirements", "setup", "workdir")
"""Fields that decide whether an app can run at all."""
_LEFT_S = 30.0
"""An ended app that is dropped within this many seconds, or a tenth of its retention, may lose its checkpoints at any
moment."""


def answer_request(
    state: State, request: Submission, question: Asked, taken: dict[str, str], live: LiveApps
) -> AppRevised | AppRestarted | AppRejected:
    """Return the answer to one request.  `taken` and `live` are those of `admission.answer`; `taken` also notes what earlier
    answers of the same round have changed."""
    app = state.apps.get(request.app)
    try:
        if app is None:
            raise SpecError(f"{request.app} is not kept any longer", code="app.not_found")
        answer = (
            _edit(state, request, question, app, taken)
            if question.what == "edit"
            else _restart(state, request, question, app, taken, live)
        )
    except SpecError as error:
        return AppRejected(
            app=request.app,
            submission=request.id,
            reason=clipped(str(error)),
            code=error.code,
            refused="update",
            cause=str(request.seq),
        )
    taken[f"{app.id} {question.what}"] = app.id
    return answer


def _edit(state: State, request: Submission, question: Asked, app: App, taken: dict[str, str]) -> AppRevised:
    check_editable(app)
    before = app.owners_spec
    if f"{app.id} edit" in taken:
        raise _stale(app)
    check_unchanged(app, question.made_from)
    if request.size > LARGEST_SPEC:
        text = f"the edit has {request.size:,} bytes; at most {LARGEST_SPEC:,} are taken"
        raise SpecError(text, code="spec.too_large")
    after = spec_of(request.spec, app)
    check_release(app, before, after)
    if after.origin != before.origin:
        after = with_origin(state, after, app.submission)
    changed = differing(before, after)
    if not changed.all:
        raise SpecError(f"the spec is the one that {app.name} has", code="edit.no_change")
    if any(name in changed.all for name in _PLACES):
        check_room(state, after, after.n_min, app.tenant)
    added = edited_links(state, app, before, after, request, taken)
    check_agents(state)
    runs = not app.ended and app.current is not None and app.current.released
    restarts = bool(differing(app.spec, after).by_restart)
    later = runs and restarts
    return AppRevised(
        app=app.id,
        revision=app.revision + 1,
        spec=merged(app.spec, after) if later else after,
        next=after if later else None,
        restarts=restarts,
        changed=list(changed.all),
        after=added,
        submission=request.id,
        editor=request.who or request.by,
        cause=str(request.seq),
    )


def spec_of(document: Any, app: App) -> AppSpec:
    """Return the checked spec of a document that edits an app.  Raises SpecError."""
    if isinstance(document, dict) and document.get("user", "anonymous") == "anonymous":
        document = {**document, "user": app.spec.user}
    spec = check_spec(document).stored()
    if same_origin(app.spec, spec):
        spec = msgspec.structs.replace(spec, origin=app.spec.origin)
    check_same_app(app.spec, spec, started=has_started(app))
    return spec


def check_editable(app: App) -> None:
    """Raises SpecError for an app that has completed, or is being cancelled."""
    if app.ended == "completed":
        raise SpecError(f"{app.name} has completed; submit another app", code="app.ended")
    if app.cancel_requested and not app.ended:
        raise SpecError(f"{app.name} is being cancelled; edit it once it has ended", code="app.ended")


def check_unchanged(app: App, made_from: str) -> None:
    """Refuse an edit of a spec that the app no longer has; "" stands for any spec. Raises SpecError."""
    if made_from not in ("", fingerprint(app.owners_spec)):
        raise _stale(app)


def _stale(app: App) -> SpecError:
    known = app.revisions
    last = known.history[-1] if known is not None and known.history else None
    edited = f" (revision {last.number} by {last.by})" if last is not None else ""
    text = f"the spec of {app.name} has changed{edited} since it was read; edit what it has now"
    return SpecError(text, code="edit.stale")


def check_agents(state: State) -> None:
    """Refuse if a node's agent would start the app's earlier spec.  Raises SpecError."""
    old = sorted(node.id for node in state.nodes.values() if not node.gone and EDITS not in node.abilities)
    if old:
        named = ", ".join(old[:3]) + (f" and {len(old) - 3} more" if len(old) > 3 else "")
        text = f"the agents of {named} are too old to follow it; upgrade them first"
        raise SpecError(text, code="steering.agents_too_old")


def _restart(
    state: State, request: Submission, question: Asked, app: App, taken: dict[str, str], live: LiveApps
) -> AppRestarted:
    if f"{app.id} restart" in taken:
        raise SpecError(f"{app.name} is being restarted already", code="restart.repeated")
    check_restartable(state, app, fresh=question.fresh)
    if app.ended:
        holder = taken.get(app.name_key) or state.names.get(app.name_key)
        if holder:
            text = f"an app named {app.name!r} exists by now ({holder}), so the earlier one can't be restarted"
            raise SpecError(text, code="spec.name.taken")
        live.check_room(app.tenant)
        live.add(app.tenant)
        taken[app.name_key] = app.id
    return AppRestarted(
        app=app.id,
        generation=app.generation,
        fresh=question.fresh,
        spec=app.spec if app.ended else None,
        tenant=tenant_in(app.submission) if app.ended else "",
        submission=request.id,
        editor=request.who or request.by,
        reason=question.reason,
        cause=str(request.seq),
    )


def check_restartable(state: State, app: App, *, fresh: bool) -> None:
    """Raises SpecError for an app that can't be restarted now."""
    if app.ended == "completed":
        raise SpecError(f"{app.name} has completed, so nothing is left to do; submit it again", code="app.ended")
    if app.ended:
        if app.stopping:
            text = f"containers of {app.name} are still stopping; restart it once they have ended"
            raise SpecError(text, code="restart.still_stopping")
        kept_s = state.settings.retention_s
        if state.time + int(min(_LEFT_S, kept_s / 10) * SECOND) >= app.ended_at + int(kept_s * SECOND):
            raise SpecError(f"{app.name} ended so long ago that it is being dropped; submit it again", code="app.ended")
        check_agents(state)
    elif app.cancel_requested:
        text = f"{app.name} is being cancelled; restart it once it has ended"
        raise SpecError(text, code="restart.still_stopping")
    elif app.current is None and not app.retry_at and not (fresh and app.checkpoint is not None):
        raise SpecError(
            f"{app.name} waits for room, so there is nothing to restart; `dorm explain {app.name}` says more",
            code="restart.waits",
        )


def check_update(state: State, event: k.AppUpdated, app: App | None) -> App:
    """Return the app if the update may change it.  Raises SpecError: an update that made a running app impossible would stop
    it."""
    if app is None or app.ended:
        raise SpecError(f"there is no app {event.app[:100]!r} that could be updated", code="app.not_found")
    n_min = event.n_min if event.n_min is not None else app.n_min
    n_max = event.n_max if event.n_max is not None else app.n_max
    changed = {name: bound for name, bound in (("n_min", event.n_min), ("n_max", event.n_max)) if bound is not None}
    check_gang(app.next_spec.gang, **changed)
    check_roles(app.next_spec, n_min)
    if n_min > n_max:
        text = f"n_min would be {n_min} and n_max {n_max}; n_min can't be the larger"
        raise SpecError(text, code="spec.n_min.above_n_max")
    if n_min > app.n_min:
        check_room(state, app.next_spec, n_min, app.tenant)
    return app


# --- the fold of requests ---------------------------------------------------------------------------------------------


def edit_requested(state: State, event: k.AppEditRequested, record: Record) -> Effect:
    return _ask(state, event, record, Asked("edit", made_from=event.made_from), event.spec)


def restart_requested(state: State, event: k.AppRestartRequested, record: Record) -> Effect:
    return _ask(state, event, record, Asked("restart", fresh=event.fresh, reason=clipped(event.reason)), None)


def _ask(
    state: State, event: k.AppEditRequested | k.AppRestartRequested, record: Record, question: Asked, spec: object
) -> Effect:
    app = app_of_request(state, event.app, subjects.who_of(record.subject))
    if app is None:
        why = f"there is no app {event.app[:100]!r}; `dorm ps --all` lists those that the cluster keeps"
        queued = queue_refused(state, event, record, why, "app.not_found", app=event.app)
        return REFUSED if queued is APPLIED else queued
    waiting = Submission(
        id=event.id,
        seq=state.seq,
        at=state.time,
        by=event.by,
        spec=spec,
        size=len(record.body),
        app=app.id,
        asked=question,
    )
    return queue(state, waiting, record)


def app_updated(state: State, event: k.AppUpdated, record: Record) -> Effect:
    try:
        app = check_update(state, event, app_of_request(state, event.app, subjects.who_of(record.subject)))
    except SpecError as refused:
        queued = queue_refused(state, event, record, str(refused), refused.code, app=event.app)
        return REFUSED if queued is APPLIED else queued
    app.n_min = event.n_min if event.n_min is not None else app.n_min
    app.n_max = event.n_max if event.n_max is not None else app.n_max
    app.weight = event.weight if event.weight is not None else app.weight
    app.held_most = app.held_least = None
    if event.n_min is not None or event.n_max is not None:
        app.size_request = None
    app.failed_trials = 0
    forget_failures(app)
    overtake_edits(state, app)
    mark_dirty(state)
    return touching(app)


def overtake_edits(state: State, app: App) -> None:
    """An update has changed what waiting edits of the app were made from, so they are refused."""
    for waiting in state.submissions.values():
        if waiting.app == app.id and waiting.asked is not None and waiting.asked.what == "edit" and not waiting.refused:
            waiting.refused = f"{app.name} was updated meanwhile; edit what it has now"
            waiting.refused_code = "edit.stale"


# --- the fold of answers ----------------------------------------------------------------------------------------------


def app_revised(state: State, event: k.AppRevised) -> Effect:
    waiting = state.submissions.get(event.submission)
    if waiting is not None and waiting.refused:  # It was overtaken between the decision's basis and its round.
        return ignored(state)
    state.submissions.pop(event.submission, None)
    app, latest = state.apps.get(event.app), event.next or event.spec
    if app is None or app.ended == "completed" or event.revision != app.revision + 1 or not _is_of(app, event):
        return ignored(state)
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
    others = apply_edit(state, app, before, event)
    if event.restarts:
        _forgive(app)
        _try_now(state, app)
    mark_dirty(state)
    return Effect(app=True, apps=(*event.after, *others), parts="touched")


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
    if not app.waiting_since and any(generation.released for generation in app.generations.values()):
        interrupt(state, app)
    mark_wait(state, app)


def _take(app: App, known: Revisions, spec: AppSpec, *, restarts: bool) -> None:
    """From here on it has this spec; containers that may still run keep the spec that they were started with."""
    before = app.spec
    if restarts:
        if known.earlier is None and any(
            generation.released and not generation.ended for generation in app.generations.values()
        ):
            known.earlier = Earlier(before, known.in_force)
        if before.batch != spec.batch:
            app.batch = 0
        app.demand, app.speeds = spec.resources(), []
    app.spec, known.in_force = spec, known.latest


def app_restarted(state: State, event: k.AppRestarted) -> Effect:
    state.submissions.pop(event.submission, None)
    app = state.apps.get(event.app)
    if app is None or app.cancel_requested > bool(app.ended) or (app.ended and not _revive(state, app, event)):
        return ignored(state)
    _forgive(app)
    current = app.current
    # An adjustment that was decided and has not begun serves as the restart.
    seq = state.seq if current is None or current.released else current.decided_seq - 1
    if current is not None or event.fresh:
        app.restart = Restart(seq, event.fresh, event.editor)
    _try_now(state, app)
    mark_dirty(state)
    return APP_PARTS


def _revive(state: State, app: App, event: k.AppRestarted) -> bool:
    """Return whether an ended app resumes."""
    if event.spec is None or app.ended == "completed" or app.name_key in state.names or app.stopping:
        return False
    app.ended, app.ended_at, app.end_reason = "", 0, ""
    app.cancel_requested, app.cancel_reason, app.kill = False, "", ""
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


# --- generations ------------------------------------------------------------------------------------------------------


def take_pending(app: App) -> int:
    """Give the next generation, which is being decided, the latest spec; return its revision."""
    known = app.revisions
    if known is None:
        return 1
    if known.pending is not None:
        pending, known.pending = known.pending, None
        _take(app, known, pending, restarts=True)
    return known.in_force


def released(app: App, generation: Generation) -> None:
    """Note that a generation is released, and that all earlier ones have ended."""
    if app.starts_fresh(generation):
        app.checkpoint, app.checkpoint_in, app.doubt = None, "", None
    if app.restart is not None and generation.decided_seq > app.restart.seq:
        app.restart = None
    if app.revisions is not None:
        app.revisions.earlier = None
