"""Whether anything new is decided: look, pause, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.api.looking import Seen, seen
from dorm.api.resources.apps import Why
from dorm.api.resources.writing import Stored, requester, stored
from dorm.api.routes import Call, Parameters, Route
from dorm.client import operating
from events.cloudevents import rfc3339

if TYPE_CHECKING:
    from dorm.api.answers import Answer
    from dorm.core.state import State


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """Whether decisions are made."""

    position: str
    paused: bool
    """Nothing new is decided.  Submissions are accepted, and what was decided is carried out."""
    since: str | None = None
    by: str = ""
    reason: str = ""


class Asked(Stored, frozen=True, kw_only=True):
    """A request is stored, and in force from there on."""

    paused: bool


async def get_scheduling(call: Call[Seen, None]) -> Answer:
    """With who paused it, since when and why."""

    def build(state: State) -> Scheduling:
        pause, position = state.paused, str(state.seq)
        if pause is None:
            return Scheduling(position=position, paused=False)
        return Scheduling(position=position, paused=True, since=rfc3339(pause.at), by=pause.by, reason=pause.reason)

    return await seen(call, build)


async def pause_scheduling(call: Call[Parameters, Why]) -> Answer:
    """Nothing new is decided until it is resumed."""
    async with requester(call) as client:
        await operating.pause(client, call.body.reason)
        return stored(Asked(position=str(client.stored), paused=True), client)


async def resume_scheduling(call: Call[Parameters, Why]) -> Answer:
    """Decisions are made again."""
    async with requester(call) as client:
        await operating.resume(client, call.body.reason)
        return stored(Asked(position=str(client.stored), paused=False), client)


ROUTES = [
    Route(
        "GET", "/v1/scheduling", get_scheduling, "Whether scheduling is paused", query=Seen, answer=Scheduling,
        tag="policy",
    ),
    Route(
        "POST", "/v1/scheduling/pause", pause_scheduling, "Pause scheduling", body=Why, answer=Asked, status=202,
        tag="policy", problems=(409, 504),
    ),
    Route(
        "POST", "/v1/scheduling/resume", resume_scheduling, "Resume scheduling", body=Why, answer=Asked, status=202,
        tag="policy", problems=(409, 504),
    ),
]  # fmt: skip
