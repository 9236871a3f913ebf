"""Edits and restarts of an app: published, and answered by the master.

Each is checked against the state before it is published, so that its author learns of an error at once, and again by
the master: someone else may have been first.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.client.errors import NoAnswer, Refused
from dorm.core.apps.steering import check_editable, check_restartable, check_unchanged, spec_of
from events.codec import decode
from events.kinds import AppEditRequested, AppRejected, AppRestarted, AppRestartRequested, AppRevised, Round
from events.spec import AppSpec, SpecError
from events.spec.editing import differing, fingerprint
from events.spec.variables import check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dorm.client.client import Client
    from dorm.core.state import App
    from events.log.records import Record


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
    client: Client, name_or_id: str, *, fresh: bool = False, reason: str = "", answer_timeout: float = 10.0
) -> App:
    """Start an app again, from its last checkpoint or `fresh`, and wait for the master's answer.  Raises as `edit` does."""
    app = await client.app(name_or_id)
    try:
        await client.look(lambda state: check_restartable(state, state.apps.get(app.id, app), fresh=fresh))
    except SpecError as error:
        raise Refused(str(error), code=error.code) from None
    return await _ask(client, AppRestartRequested(app=app.id, fresh=fresh, reason=reason), app, answer_timeout)


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
    asked = await client.ask(type(request), id=id, **fields)
    try:
        async with (
            asyncio.timeout(timeout),
            contextlib.aclosing(client.log.read(after=asked, follow=True)) as batches,
        ):
            async for batch in batches:
                for fact in _answers(batch, id):
                    if isinstance(fact, AppRejected):
                        raise Refused(fact.reason, code=fact.code)
                    # An edit that an update has overtaken meanwhile is still to be refused.
                    if not await client.look(lambda state: id in state.submissions):
                        return await client.app(app.id)
    except TimeoutError:
        pass
    raise NoAnswer(
        f"the request is stored, and no master has answered yet (`dorm masters`); one older than 0.6.0 never will; "
        f"`dorm describe {app.name}` shows what became of it"
    )


def _answers(batch: Sequence[Record], id: str) -> Iterator[AppRejected | AppRevised | AppRestarted]:
    """Yield the master's answers to one request."""
    for event in map(decode, batch):
        for fact in event.events if isinstance(event, Round) else ():
            if isinstance(fact, AppRejected | AppRevised | AppRestarted) and fact.submission == id:
                yield fact
