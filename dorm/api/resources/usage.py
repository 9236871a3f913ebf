"""Usage: what users, apps and nodes were given, used and lost over a span of time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.errors import Forbidden, Invalid, Unavailable
from dorm.api.handlers import At, MinSeq, parse_moment, settled
from dorm.api.routes import Call, Parameters, Route
from dorm.client.uses import last_uses
from events.errors import code_of
from events.quantities import duration
from replay.usage.ledger import GROUPS
from replay.usage.usage import Usage, usage

if TYPE_CHECKING:
    from dorm.core.state import State
    from replay.usage.usage import Uses

_SPARE_S = 2.0
"""Seconds that remain of a request's time for saying that it was too short."""
_MOST = 100
Names = Annotated[tuple[str, ...], msgspec.Meta(max_length=_MOST)]


class Spanned(Parameters, frozen=True, kw_only=True, rename={"begin": "from"}):
    """Which usage."""

    begin: Annotated[At, msgspec.Meta(description="The span's begin; default: the log's first record.")] | None = None
    to: Annotated[At, msgspec.Meta(description="The span's end; default: now.")] | None = None
    by: Annotated[
        str,
        msgspec.Meta(
            max_length=64,
            description="What to sum up by: some of user, app and node with commas between, or resource for all.",
        ),
    ] = "user"
    every: (
        Annotated[str, msgspec.Meta(max_length=16, description="Sums for each period of this length, such as 1h.")]
        | None
    ) = None
    user: Names = ()
    """Only these users."""
    app: Names = ()
    """Only these apps, by name or id."""
    node: Names = ()
    """Only these nodes."""
    min_seq: MinSeq | None = None


async def get_usage(call: Call[Spanned, None]) -> Answer:
    """What was given, used, wasted and lost over a span, as `dorm usage` counts it.  Users who read only their own apps get
    their own usage.  Bounded in time; closing the request ends the computation."""
    query, services = call.query, call.services
    users = _users(call)
    by = _groups(query.by)
    every_s = _every_s(query.every)
    await settled(call)
    begin, end = (None if text is None else parse_moment(text) for text in (query.begin, query.to))
    archived = bool(services.options.archive)

    async def uses(state: State) -> Uses:
        return await last_uses(services.connection.bus, services.cluster, state)

    seconds = services.options.limits.long_answer_s - _SPARE_S
    async with services.forks.turn():
        try:
            async with asyncio.timeout(seconds):
                found = await usage(
                    services.follower.log, begin, end, by=by, users=users, apps=query.app, nodes=query.node, every_s=every_s,
                    now=0 if archived else services.clock(), uses=None if archived else uses,
                    strict=users == query.user,
                )  # fmt: skip
        except TimeoutError:
            raise Unavailable(
                f"counting takes longer than {seconds:.0f} s; choose a shorter span, or run `dorm usage`, which has no "
                "such bound",
                code="api.too_slow",
            ) from None
    return await asyncio.to_thread(answer, found, found.last, pack=call.packs)


def _users(call: Call[Spanned, None]) -> tuple[str, ...]:
    """Return whose usage is asked for.  Raises Forbidden if a user who reads only their own apps asks for others'."""
    own = call.services.door.own_only(call.user)
    if own is None:
        return call.query.user
    if any(name != own for name in call.query.user):
        text = f"{call.user} reads the usage of {own} only; a reader reads all"
        raise Forbidden(text, code="identity.role.too_low")
    return (own,)


def _groups(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if any(name not in (*GROUPS, "resource") for name in names):
        raise Invalid(
            "`by`: write some of user, app and node with commas between, or resource", code="usage.by.unknown"
        )
    return tuple(name for name in names if name != "resource")


def _every_s(text: str | None) -> float:
    try:
        seconds = 0.0 if text is None else duration(text)
    except ValueError as error:
        raise Invalid(f"`every`: {error}", code=code_of(error)) from None
    if text is not None and seconds < 1.0:
        raise Invalid("`every`: a period is at least 1s long", code="usage.every.too_short")
    return seconds


ROUTES = [
    Route("GET", "/v1/usage", get_usage, "Usage over a span of time", query=Spanned, answer=Usage, tag="moments", long=True),
]  # fmt: skip
