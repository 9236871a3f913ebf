"""Which apps a new one waits for: `after` of its spec, at its admission.

A name refers to the tenant's own live app, or otherwise to the latest ended app of that name. An app can name only
apps that were submitted earlier, so no two apps wait for each other. Apps of other tenants and apps that do not exist
are both unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.app import Awaited, name_key
from events.spec import SpecError
from events.spec.gates import After, awaited

if TYPE_CHECKING:
    from dorm.core.state import App, State, Submission
    from events.spec import AppSpec

WORDS = {"completed": "complete", "failed": "fail", "ended": "end"}
"""By `when`, what the other app has to do."""


def awaited_apps(state: State, spec: AppSpec, submission: Submission, taken: dict[str, str]) -> list[str]:
    """Return the ids of the apps that it waits for, in the order of its spec.

    `taken` maps names that were assigned earlier in the same round to their apps.  Raises SpecError for an app that is not
    known, and for one that has ended otherwise than it has to."""
    return [_id_of(state, one, submission, taken) for one in awaited(spec)]


def _id_of(state: State, one: After, submission: Submission, taken: dict[str, str]) -> str:
    newcomer = taken.get(name_key(one.app, submission.id))
    if newcomer is None:
        newcomer = one.app if one.app in _own(taken, submission) else None
    if newcomer is not None:
        return newcomer
    app = _find(state, one.app, submission)
    if app is None:
        raise SpecError(
            f"after: there is no app {one.app!r} of yours; submit it first, and leave out one that ended so long ago that the "
            "cluster has forgotten it",
            code="spec.after.unknown",
        )
    found = Awaited(app.id, app.name, one.when, app.ended)
    if found.broken:
        raise SpecError(f"after: {cannot(found)}; submit {app.name} again first", code="spec.after.never")
    return app.id


def _own(taken: dict[str, str], submission: Submission) -> list[str]:
    return [app for key, app in taken.items() if key.rpartition("//")[0] == submission.tenant]


def _find(state: State, name: str, submission: Submission) -> App | None:
    tenant = submission.tenant
    named = state.names.get(name_key(name, submission.id)) or (name if name in state.apps else None)
    if named is not None:
        app = state.apps[named]
        return app if not tenant or app.tenant == tenant else None
    found = [app for app in state.apps.values() if app.name == name and (not tenant or app.tenant == tenant)]
    return max(found, key=lambda app: app.seq, default=None)


def cannot(one: Awaited) -> str:
    """`prep failed, so it can't complete`"""
    was = "was cancelled" if one.outcome == "cancelled" else one.outcome
    return f"{one.name} {was}, so it can't {WORDS[one.when]}"
