"""Edits, restarts and holds of an app: published, and answered by the master.

Each is checked against the state before it is published, so that its author learns of an error at once, and again by the
master: someone else may have been first.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from dorm.client.answers import facts_after
from dorm.client.errors import NoAnswer, Refused
from dorm.core.gates import held_by, hold_of, may_be_held
from dorm.core.revisions import check_editable, check_restartable, check_unchanged, spec_of
from events.kinds import (
    AppEditRequested,
    AppHoldRequested,
    AppRejected,
    AppReleaseRequested,
    AppRestarted,
    AppRestartRequested,
    AppRevised,
)
from events.spec import AppSpec, SpecError
from events.spec.editing import differing, fingerprint
from events.spec.variables import check_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.client.client import Client
    from dorm.core.state import App


# --- edits and restarts -----------------------------------------------------------------------------------------------


async def edit(
    client: Client,
    name_or_id: str,
    spec: AppSpec | dict[str, Any],
    *,
    made_from: AppSpec | str | None = None,
    answer_timeout: float = 10.0,
) -> App:
    """Give an app another spec, and wait for the master's answer.

    `made_from` is the app's spec when the edit was made (`App.owners_spec`), or its fingerprint; without it the edit
    replaces whatever it has now.  Raises NotFound; Refused, with `edit.stale` if someone else has changed the spec since;
    NoAnswer; Unsettled; the log's errors."""
    app = await client.app(name_or_id)
    document = msgspec.to_builtins(spec) if isinstance(spec, AppSpec) else spec
    read = made_from if made_from is not None else app.owners_spec
    basis = read if isinstance(read, str) else fingerprint(read)

    def check() -> None:
        check_editable(app)
        check_unchanged(app, basis)
        edited = spec_of(document, app)
        changed = differing(app.owners_spec, edited).all
        if not changed:
            raise SpecError(f"the spec is the one that {app.name} has", code="edit.no_change")
        if not {"command", "resume", "checkpoint", "env"}.isdisjoint(changed):
            check_names(edited)

    _or_refused(check)
    return await _ask(client, AppEditRequested(app=app.id, spec=document, made_from=basis), app, answer_timeout)


async def restart(
    client: Client,
    name_or_id: str,
    *,
    fresh: bool = False,
    fall_back: bool = False,
    reason: str = "",
    answer_timeout: float = 10.0,
) -> App:
    """Start an app again, from its last checkpoint or `fresh`, and wait for the master's answer.  `fall_back` first edits
    the spec, so that from now on a doubtful checkpoint is set aside.  Raises as `edit` does."""
    app = await client.app(name_or_id)
    if fall_back:
        _or_refused(partial(_check_falls_back, app, fresh=fresh))
    try:
        await client.look(lambda state: check_restartable(state, state.apps.get(app.id, app), fresh=fresh))
    except SpecError as error:
        raise Refused(str(error), code=error.code) from None
    if fall_back and app.owners_spec.on_doubtful != "fall_back":
        after = msgspec.structs.replace(app.owners_spec, on_doubtful="fall_back")
        await edit(client, app.id, after, made_from=app.owners_spec, answer_timeout=answer_timeout)
    return await _ask(client, AppRestartRequested(app=app.id, fresh=fresh, reason=reason), app, answer_timeout)


def _check_falls_back(app: App, *, fresh: bool) -> None:
    """Raises SpecError if there is no earlier checkpoint to which the app can return."""
    if fresh:
        text = "a fresh start uses no checkpoint, so there is none to fall back to; give one of the two"
        raise SpecError(text, code="restart.fresh_falls_back")
    if app.doubt is UNSET or app.doubt.what.aside:
        text = (
            f"no checkpoint of {app.name} is in doubt; `dorm edit {app.name}` sets `on_doubtful: fall_back` for later"
        )
        raise SpecError(text, code="restart.no_doubt")
    if not app.doubt.what.before:
        text = (
            f"{app.name} has no checkpoint before the doubtful one, under a name of its own; put a complete file in its "
            "place with `dorm cp`, or restart it with --fresh"
        )
        raise SpecError(text, code="restart.nothing_before")


def _or_refused(check: Callable[[], None]) -> None:
    try:
        check()
    except SpecError as error:
        raise Refused(str(error), code=error.code) from None


async def _ask(client: Client, request: AppEditRequested | AppRestartRequested, app: App, timeout: float) -> App:
    id = await client.submission_id()
    fields = {
        name: getattr(request, name)
        for name in ("app", "spec", "made_from", "fresh", "reason")
        if hasattr(request, name)
    }
    stored = await client.ask(type(request), id=id, **fields)
    no_answer = NoAnswer(
        f"the request is stored, and no master has answered yet (`dorm masters`); one older than 0.6.0 never will; "
        f"`dorm describe {app.name}` shows what became of it"
    )
    async with contextlib.aclosing(facts_after(client.log, stored, timeout=timeout, no_answer=no_answer)) as facts:
        async for fact in facts:
            if not isinstance(fact, AppRejected | AppRevised | AppRestarted) or fact.submission != id:
                continue
            if isinstance(fact, AppRejected):
                raise Refused(fact.reason, code=fact.code)
            # An edit that an update has overtaken meanwhile is still to be refused.
            if not await client.look(lambda state: id in state.submissions):
                return await client.app(app.id)
    raise AssertionError("it returns or raises")


# --- holds ------------------------------------------------------------------------------------------------------------


async def hold(client: Client, name_or_id: str, reason: str = "") -> App:
    """Hold an app.  Raises NotFound, Refused."""
    app = await client.app(name_or_id)
    _check_lives(app)
    event = AppHoldRequested(app=app.id, by=client.user, reason=reason)
    await client.check_authority(event)
    if not await client.look(lambda state: may_be_held(state, app, client.user)):
        by = hold_of(app)
        why = f"{app.name} is {held_by(by)}" if by is not None else f"{app.name} is about to be cancelled"
        raise Refused(f"{why}; `dorm explain {app.name}` says more", code="app.held" if by else "app.cancelled")
    await client.ask(AppHoldRequested, app=app.id, reason=reason)
    return app


async def release(client: Client, name_or_id: str, reason: str = "") -> App:
    """Let a held app continue.  Raises NotFound, Refused."""
    app = await client.app(name_or_id)
    _check_lives(app)
    if hold_of(app) is None:
        raise Refused(
            f"nobody holds {app.name}, it is {app.phase}; `dorm explain {app.name}` says more", code="app.not_held"
        )
    await client.ask(AppReleaseRequested, app=app.id, reason=reason)
    return app


def _check_lives(app: App) -> None:
    if app.ended:
        raise Refused(f"{app.name} has ended ({app.ended}); submit it again", code="app.ended")
