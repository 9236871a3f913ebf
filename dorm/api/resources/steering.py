"""Another spec for an app that exists, and its restart.

A spec is read with a tag (`ETag`), its fingerprint.  An edit that names it in `If-Match` is refused with 412 if someone
else has edited the spec since.  Without it, a whole spec replaces any current spec, and a patch is applied to it.  Before
an edit is made, it can be tried: which fields differ, whether the app restarts for them, and which apps the next decision
resizes.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.errors import Invalid, Malformed
from dorm.api.handlers import Seen, Stored, answer_from_state, requester, stored
from dorm.api.routes import Call, Header, Link, Parameters, Route
from dorm.client import steering
from dorm.client.errors import Refused
from dorm.client.finding import find_app
from dorm.core.query.assumed import Assumed, PlannedApp
from dorm.core.query.plans import plan
from dorm.core.revisions import check_editable, spec_of
from events.spec import document_of
from events.spec.editing import differences, differing, fingerprint, patched

if TYPE_CHECKING:
    from dorm.api.answers import Answer
    from dorm.core.app import App
    from dorm.core.state import State
    from events.spec import AppSpec


# --- the spec, read and replaced --------------------------------------------------------------------------------------

IF_MATCH = "If-Match"
_MATCH = r'^(\*|(W/)?"[0-9a-f]{16}")$'
MATCHED = Header(IF_MATCH, "The `ETag` of the spec that the edit was made from; `*` stands for any.", _MATCH, 24)
_TRIES = 3
"""Number of times that a patch is applied again after a concurrent edit."""


class SpecDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The spec that an app has, or will have once it has restarted for it."""

    id: str
    name: str
    position: str
    revision: int
    """Counts the app's specs: the submitted one is 1."""
    tag: str
    """The fingerprint of the spec, as the header `ETag` has it between quotes."""
    spec: dict[str, Any]


class Edited(Stored, frozen=True, kw_only=True):
    """The master has accepted an edit."""

    id: str
    revision: int
    tag: str
    """Of the new spec."""
    restarts: bool
    """Whether the app saves a checkpoint now and starts again with it; bounds, weight and limits need no restart."""


async def get_spec(call: Call[Seen, None]) -> Answer:
    """As `dorm edit` shows it, without defaults.  The header `ETag` is what an edit names in `If-Match`."""

    def build(state: State) -> Answer:
        app = find_app(state, call.path("app"), call.user)
        document = SpecDocument(
            id=app.id,
            name=app.name,
            position=str(state.seq),
            revision=app.revision,
            tag=fingerprint(app.owners_spec),
            spec=document_of(app.owners_spec),
        )
        return answer(document, state.seq, headers={"ETag": f'"{document.tag}"'})

    return await answer_from_state(call, build)


async def replace_spec(call: Call[Parameters, dict[str, Any]]) -> Answer:
    """The whole spec as JSON or YAML. Bounds, weight and limits apply immediately; for all other fields, a running
    app saves a checkpoint, stops, and resumes with the new spec. The name and the user cannot change."""
    wanted = _tag(call)
    async with requester(call) as client:
        before = _Before.of(await client.app(call.path("app")))
        return before.edited(await steering.edit(client, before.id, call.body, made_from=wanted), client.stored)


async def patch_spec(call: Call[Parameters, dict[str, Any]]) -> Answer:
    """Single fields, as a merge patch (RFC 7396): maps such as `env` are merged, and null stands for a field's default."""
    wanted = _tag(call)
    async with requester(call) as client:
        for left in range(_TRIES - 1, -1, -1):
            app = await client.app(call.path("app"))
            before = _Before.of(app)
            document, basis = patched(document_of(app.owners_spec), call.body), wanted or fingerprint(app.owners_spec)
            try:
                return before.edited(await steering.edit(client, app.id, document, made_from=basis), client.stored)
            except Refused as error:
                if wanted or not left or error.code != "edit.stale":
                    raise
        raise AssertionError("the last try returns or raises")


class _Before(NamedTuple):
    """An app before an edit. Once the master has answered, the restart may already be decided, and no longer wanted."""

    id: str
    spec: AppSpec
    runs: bool

    @classmethod
    def of(cls, app: App) -> Self:
        return cls(app.id, app.owners_spec, app.current is not None and not app.ended)

    def edited(self, app: App, stored: int) -> Answer:
        tag = fingerprint(app.owners_spec)
        restarts = self.runs and bool(differing(self.spec, app.owners_spec).by_restart)
        body = Edited(position=str(stored), id=app.id, revision=app.revision, tag=tag, restarts=restarts)
        return answer(body, stored, status=202, headers={"ETag": f'"{tag}"'})


def _tag(call: Call[Any, Any]) -> str | None:
    """Return the tag that the request names, None if it accepts any spec. Raises Malformed."""
    given = call.request.headers.get(IF_MATCH)
    if given is None or given == "*":
        return None
    if not re.fullmatch(_MATCH, given):
        raise Malformed(f"{IF_MATCH}: send the ETag that the spec was read with, or *", code="api.if_match.malformed")
    return given.removeprefix("W/").strip('"')


_LINKS = (Link("get_spec", "app", "$response.body#/id"), Link("get_app", "app", "$response.body#/id"))
ROUTES = [
    Route(
        "GET", "/v1/apps/{app}/spec", get_spec, "The spec of an app", query=Seen, answer=SpecDocument, tag="apps",
        links=(Link("replace_spec", "app", "$response.body#/id"), Link("patch_spec", "app", "$response.body#/id")),
    ),
    Route(
        "PUT", "/v1/apps/{app}/spec", replace_spec, "Give an app another spec", body=dict[str, Any], answer=Edited,
        status=202, yaml=True, tag="apps", problems=(409, 412, 504), links=_LINKS, headers=(MATCHED,),
    ),
    Route(
        "PATCH", "/v1/apps/{app}/spec", patch_spec, "Change fields of an app's spec", body=dict[str, Any], answer=Edited,
        status=202, tag="apps", problems=(409, 412, 504), links=_LINKS, headers=(MATCHED,),
    ),
]  # fmt: skip


# --- what an edit would do --------------------------------------------------------------------------------------------


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edit: one of the two."""

    ONE_OF: ClassVar = ("spec", "patch")

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
        trial = await services.heavy.run(work)
        return await services.heavy.run(partial(answer, trial, state.seq, pack=call.packs))


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
        changes=[app for app in planned.apps if app.kind or app.end] if planned is not None else [],
    )


TRY_ROUTES = [
    Route(
        "POST", "/v1/apps/{app}/spec/try", try_edit, "Try an edit", body=Edit, answer=TriedEdit, tag="apps", long=True,
    ),
]  # fmt: skip


# --- restarts ---------------------------------------------------------------------------------------------------------


class Restart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an app is started again."""

    fresh: bool = False
    """Without its checkpoint: its start command runs, from step 0.  No file is deleted."""
    fall_back: bool = False
    """Without the files of its checkpoint that are in doubt: they are set aside, now and later (`on_doubtful`)."""
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """It is written to the log."""


class Restarted(Stored, frozen=True, kw_only=True):
    """The master has accepted a restart."""

    id: str
    was: str
    """The app's phase before."""
    checkpoint: int | None
    """The step of the checkpoint from which it resumes; null if it starts without one. A running app saves a newer
    one first."""


async def restart_app(call: Call[Parameters, Restart]) -> Answer:
    """A running app saves a checkpoint and starts again; a pausing app is retried now; a failed or cancelled app
    resumes from its last checkpoint, as long as the cluster keeps it."""
    body = call.body
    async with requester(call) as client:
        before = await client.app(call.path("app"))
        app = await steering.restart(client, before.id, fresh=body.fresh, fall_back=body.fall_back, reason=body.reason)
        checkpoint = None if body.fresh else before.checkpoint
        restarted = Restarted(position=str(client.stored), id=app.id, was=before.phase, checkpoint=checkpoint)
        return stored(restarted, client)


RESTART_ROUTES = [
    Route(
        "POST", "/v1/apps/{app}/restart", restart_app, "Start an app again", body=Restart, answer=Restarted, status=202,
        tag="apps", problems=(409, 504), links=(Link("get_app", "app", "$response.body#/id"),),
    ),
]  # fmt: skip
