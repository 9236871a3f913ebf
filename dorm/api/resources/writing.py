"""Requests to the cluster: stored on the log by a client of this request's user, and answered with their position."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.errors import Malformed
from events.limits import LONGEST_NAME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.api.follower import Requester
    from dorm.api.routes import Call

KEY = "Idempotency-Key"
KEY_PATTERN = rf"^[!-~]([ -~]{{0,{LONGEST_NAME - 2}}}[!-~])?$"


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A request is on the log."""

    position: str
    """Where; a read with it as `min_seq` shows what follows from it."""


@contextlib.asynccontextmanager
async def requester(call: Call[Any, Any]) -> AsyncIterator[Requester]:
    """Yield a client for the request's user, once it is its turn.  Raises Unavailable."""
    async with call.services.writes.turn(call.user):
        yield call.services.requester(call.user)


def stored(found: Any, made: Requester, status: int = 202) -> Answer:
    return answer(found, made.stored, status=status)


def idempotency_key(call: Call[Any, Any]) -> str | None:
    """Return the id of a submission that the client chose.  Raises Malformed."""
    given = call.request.headers.get(KEY)
    if given is None:
        return None
    if not re.fullmatch(KEY_PATTERN, given):
        raise Malformed(f"{KEY}: 1 to {LONGEST_NAME} printable ASCII characters", code="api.idempotency_key.malformed")
    return given
