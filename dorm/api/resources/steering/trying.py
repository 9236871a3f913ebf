"""The effects of an edit: which fields differ, whether the app restarts for them, and which apps the next decision
resizes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.errors import Invalid
from dorm.api.routes import Call, Parameters, Route
from dorm.client.finding import find_app
from dorm.core.query.assumed import Assumed, PlannedApp
from dorm.core.query.plans import plan
from dorm.core.revisions import check_editable, spec_of
from events.spec import document_of
from events.spec.editing import differences, differing, fingerprint, patched

if TYPE_CHECKING:
    from dorm.core.state import State


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edit: one of the two."""

    spec: dict[str, Any] | None = None
    """A whole spec, as for `PUT /v1/apps/{app}/spec`."""
    patch: dict[str, Any] | None = None
    """Single fields, as for `PATCH /v1/apps/{app}/spec`."""


class Change(msgspec.Struct, frozen=True):
    """A field's two values."""

    before: Any
    after: Any


class TriedEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What an edit would do.  Nothing differs if both maps are empty."""

    position: str
    id: str
    revision: int
    """That of the spec that the app has."""
    tag: str
    """Of the same: an edit that names it in `If-Match` does this, or is refused."""
    at_once: dict[str, Change]
    """Fields that hold at once."""
    by_restart: dict[str, Change]
    """Fields for which an app that runs is checkpointed and started again."""
    restarts: bool
    changes: list[PlannedApp]
    """Apps that the next decision would resize, start or stop."""


async def try_edit(call: Call[Parameters, Edit]) -> Answer:
    """Computed by the policy as the master would; nothing happens."""
    services, body = call.services, call.body
    if (body.spec is None) == (body.patch is None):
        raise Invalid("give `spec` or `patch`, one of them", code="api.parameter.conflict")
    async with services.heavy.turn():
        await services.follower.latest(services.options.limits.behind_s)
        state = await services.moments.present()
        work = partial(_tried, state, max(state.time, services.clock()), call.path("app"), call.user, body)
        found = await services.heavy.run(work)
        return await services.heavy.run(partial(answer, found, state.seq, pack=call.packs))


def _tried(state: State, now: int, name: str, user: str, body: Edit) -> TriedEdit:
    app = find_app(state, name, user)
    check_editable(app)
    before = app.owners_spec
    after = spec_of(body.spec if body.spec is not None else patched(document_of(before), body.patch), app)
    changes = differing(before, after)
    planned = plan(state, now, Assumed(edited=((app.id, after),))) if changes.all and not app.ended else None

    def sides(names: tuple[str, ...]) -> dict[str, Change]:
        return {name: Change(**values) for name, values in differences(before, after, names).items()}

    return TriedEdit(
        position=str(state.seq),
        id=app.id,
        revision=app.revision,
        tag=fingerprint(before),
        at_once=sides(changes.at_once),
        by_restart=sides(changes.by_restart),
        restarts=bool(changes.by_restart) and app.current is not None and not app.ended,
        changes=[one for one in planned.apps if one.kind or one.end] if planned is not None else [],
    )


ROUTES = [
    Route(
        "POST", "/v1/apps/{app}/spec/try", try_edit, "Try an edit", body=Edit, answer=TriedEdit, tag="apps", long=True,
    ),
]  # fmt: skip
