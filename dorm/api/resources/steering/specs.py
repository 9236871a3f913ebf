"""Specs of apps: read with a tag, and replaced or changed if they are still the ones that were read.

The tag (`ETag`) is the spec's fingerprint. An edit that names it in `If-Match` is refused with 412 if someone else has edited
the spec since. Without it, a whole spec replaces any current spec, and a patch is applied to it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.errors import Malformed
from dorm.api.handlers import Seen, Stored, requester, seen
from dorm.api.routes import Call, Header, Link, Parameters, Route
from dorm.client import steering
from dorm.client.errors import Refused
from dorm.client.finding import find_app
from events.spec import document_of
from events.spec.editing import differing, fingerprint, patched

if TYPE_CHECKING:
    from dorm.core.app import App
    from dorm.core.state import State
    from events.spec import AppSpec

IF_MATCH = "If-Match"
_MATCH = r'^(\*|(W/)?"[0-9a-f]{16}")$'
MATCHED = Header(IF_MATCH, "The `ETag` of the spec that the edit was made from; `*` stands for any.", _MATCH, 24)
_TRIES = 3
"""How often a patch is applied again after a concurrent edit."""


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
        found = SpecDocument(
            id=app.id,
            name=app.name,
            position=str(state.seq),
            revision=app.revision,
            tag=fingerprint(app.owners_spec),
            spec=document_of(app.owners_spec),
        )
        return answer(found, state.seq, headers={"ETag": f'"{found.tag}"'})

    return await seen(call, build)


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
        found = Edited(position=str(stored), id=app.id, revision=app.revision, tag=tag, restarts=restarts)
        return answer(found, stored, status=202, headers={"ETag": f'"{tag}"'})


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
