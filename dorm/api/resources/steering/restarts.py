"""Restarts of apps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from dorm.api.handlers import Stored, requester, stored
from dorm.api.routes import Call, Link, Parameters, Route
from dorm.client import steering

if TYPE_CHECKING:
    from dorm.api.answers import Answer


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
        found = Restarted(position=str(client.stored), id=app.id, was=before.phase, checkpoint=checkpoint)
        return stored(found, client)


ROUTES = [
    Route(
        "POST", "/v1/apps/{app}/restart", restart_app, "Start an app again", body=Restart, answer=Restarted, status=202,
        tag="apps", problems=(409, 504), links=(Link("get_app", "app", "$response.body#/id"),),
    ),
]  # fmt: skip
