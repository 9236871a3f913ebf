"""Requests that wait for the master's answer, and what they name.

A submission, an edit and a restart need the master: it checks them against the whole cluster and answers in its next
round.  Until then they wait here, by the id that their sender chose.  So do updates that the fold refuses at once, so
that their sender gets an answer too.

    first       a repeated id changes nothing: senders repeat what they do not know to have arrived, and a second
                request under the same id must not displace the first one.  Ids belong to tenants, so no one can occupy
                another's
    overtaken   an app that a request names may end or change before the answer.  A cancelled submission is answered by
                a refusal, and one that the master has accepted meanwhile starts its app as cancelled
                (`dorm.core.rounds`); a waiting edit of an app that is updated meanwhile is refused
                (`dorm.core.revisions`)
    own         a request changes an app of its author's tenant, or any app if its author operates the cluster.  An app
                of another tenant is as unknown as one that does not exist
    from        a spec may start from another app's checkpoint (`from`).  Its name and step become those of one app and
                one step at the answer, since names are given again later and checkpoints go on
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.folded import APPLIED, Effect, ignored
from dorm.core.state import Submission, can_be_kept
from events import subjects
from events.identities import tenant_in
from events.spec import SpecError
from events.spec.gates import origin_of

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events.kinds import Event
    from events.log.records import Record
    from events.spec import AppSpec


def queue(state: State, submission: Submission, record: Record) -> Effect:
    """Queue a request for an answer; a repeated id changes nothing."""
    if submission.id in state.submissions:
        return ignored(state)
    if not can_be_kept(submission.spec):
        submission.spec, submission.refused = None, "the spec holds a number that no spec has"
        submission.refused_code = "spec.number.too_large"
    submission.who = subjects.who_of(record.subject)
    state.submissions[submission.id] = submission
    return APPLIED


def queue_refused(
    state: State, event: Event, record: Record, why: str, code: str, *, app: str = "", spec: Any = None
) -> Effect:
    """Queue a refused request, so that its sender gets an answer. `app`: the app of a refused update."""
    refused = Submission(
        id=event.id,
        seq=state.seq,
        at=state.time,
        by=event.by,
        spec=spec,
        size=0,
        refused=why,
        refused_code=code,
        app=app,
    )
    return queue(state, refused, record)


# --- what a request names -------------------------------------------------------------------------------------------------


def app_of_request(state: State, name_or_id: str, who: str) -> App | None:
    """Return the app that a request names, if its author may change it."""
    known = state.known
    if known is None:
        return state.find_app(name_or_id)
    tenant = known.tenant_of(who)
    app = state.find_app(name_or_id, tenant)
    return app if app is not None and (app.tenant == tenant or known.operates(who)) else None


def with_origin(state: State, spec: AppSpec, submission: str) -> AppSpec:
    """Return the spec with the app's id and the step to which `from` refers. Raises SpecError if this tenant has no
    such app, or the app has no such checkpoint."""
    origin = origin_of(spec.origin)
    if origin is None:
        return spec
    tenant = tenant_in(submission)
    app = state.find_app(origin.app, tenant)
    if app is None or tenant_in(app.submission) != tenant:
        raise SpecError(
            f"from: there is no app {origin.app}, or no longer; `dorm ps --all` lists those that are kept",
            code="spec.from.not_found",
        )
    if app.checkpoint is None:
        raise SpecError(
            f"from: {app.name} has reported no checkpoint; `dorm checkpoints {app.name}` shows what is there",
            code="spec.from.no_checkpoint",
        )
    if origin.step is not None and origin.step > app.checkpoint:
        raise SpecError(
            f"from: the last checkpoint that {app.name} reported is of step {app.checkpoint}, not {origin.step}",
            code="spec.from.no_step",
        )
    step = app.checkpoint if origin.step is None else origin.step
    later = origin.later or step == app.checkpoint
    return msgspec.structs.replace(spec, origin=origin._replace(app=app.id, step=step, later=later).text)


def begin(state: State, app: App) -> None:
    """Give a new app the checkpoint that it starts from."""
    origin = origin_of(app.spec.origin)
    if origin is not None:
        before = state.apps.get(origin.app)
        app.checkpoint = origin.step
        app.checkpoint_in = before.checkpoint_in if before is not None else ""
