"""Holds and releases: an app gets no containers until it is released.

Each is checked against the state before it is published, so that its author learns of an error at once, and again once
it is folded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.client.errors import Refused
from dorm.core.gates import held_by, hold_of, may_be_held
from events.kinds import AppHoldRequested, AppReleaseRequested

if TYPE_CHECKING:
    from dorm.client.client import Client
    from dorm.core.state import App


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
