"""Which edits and restarts may be: the master's answer to requests about an existing app.

An edit is checked like a submission, and names the spec on which it is based, so that the second of two editors has
to repeat the edit. A restart is for an app that runs or pauses, or that has failed or was cancelled and is still
kept. A completed app has nothing left to do; it can be submitted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from dorm.core.apps.admission import check_room
from dorm.core.gates import check_release, edited_links, has_started
from dorm.core.submissions import with_origin
from events.identities import tenant_in
from events.kinds import AppRejected, AppRestarted, AppRevised
from events.limits import clipped
from events.quantities import SECOND
from events.spec import LARGEST_SPEC, SpecError, check_spec
from events.spec.abilities import EDITS
from events.spec.editing import check_same_app, differing, fingerprint, merged, same_origin

if TYPE_CHECKING:
    from dorm.core.app import Asked
    from dorm.core.apps.admission import LiveApps
    from dorm.core.state import App, State, Submission
    from events.spec import AppSpec

_PLACES = ("demand", "n_min", "require", "gang", "volumes", "python", "requirements", "setup", "workdir")
"""Fields that decide whether an app can run at all."""
_LEFT_S = 30.0
"""An ended app that is dropped within this many seconds, or a tenth of its retention, may lose its checkpoints at any
moment."""


def answer(
    state: State, request: Submission, asked: Asked, taken: dict[str, str], live: LiveApps
) -> AppRevised | AppRestarted | AppRejected:
    """Return the answer to one request.  `taken` and `live` are those of `admission.answer`; `taken` also notes what earlier
    answers of the same round have changed."""
    app = state.apps.get(request.app)
    try:
        if app is None:
            raise SpecError(f"{request.app} is not kept any longer", code="app.not_found")
        said = (
            _edit(state, request, asked, app, taken)
            if asked.what == "edit"
            else _restart(state, request, asked, app, taken, live)
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
    taken[f"{app.id} {asked.what}"] = app.id
    return said


def _edit(state: State, request: Submission, asked: Asked, app: App, taken: dict[str, str]) -> AppRevised:
    check_editable(app)
    before = app.owners_spec
    if f"{app.id} edit" in taken:
        raise _stale(app)
    check_unchanged(app, asked.made_from)
    if request.size > LARGEST_SPEC:
        text = f"the edit has {request.size:,} bytes; at most {LARGEST_SPEC:,} are taken"
        raise SpecError(text, code="spec.too_large")
    after = spec_of(request.spec, app)
    check_release(app, before, after)
    if after.origin != before.origin:
        after = with_origin(state, after, app.submission)
    found = differing(before, after)
    if not found.all:
        raise SpecError(f"the spec is the one that {app.name} has", code="edit.no_change")
    if any(name in found.all for name in _PLACES):
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
        changed=list(found.all),
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
    last = known.history[-1] if known is not UNSET and known.history else None
    edited = f" (revision {last.number} by {last.by})" if last is not None else ""
    text = f"the spec of {app.name} has changed{edited} since it was read; edit what it has now"
    return SpecError(text, code="edit.stale")


def check_agents(state: State) -> None:
    """Refuse if a node's agent would start the app's earlier spec.  Raises SpecError."""
    old = sorted(node.id for node in state.nodes.values() if not node.gone and EDITS not in node.able)
    if old:
        named = ", ".join(old[:3]) + (f" and {len(old) - 3} more" if len(old) > 3 else "")
        text = f"the agents of {named} are too old to follow it; upgrade them first"
        raise SpecError(text, code="steering.agents_too_old")


def _restart(
    state: State, request: Submission, asked: Asked, app: App, taken: dict[str, str], live: LiveApps
) -> AppRestarted:
    if f"{app.id} restart" in taken:
        raise SpecError(f"{app.name} is being restarted already", code="restart.repeated")
    check_restartable(state, app, fresh=asked.fresh)
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
        fresh=asked.fresh,
        spec=app.spec if app.ended else None,
        tenant=tenant_in(app.submission) if app.ended else "",
        submission=request.id,
        editor=request.who or request.by,
        reason=asked.reason,
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
