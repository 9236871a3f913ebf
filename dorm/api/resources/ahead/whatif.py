"""What-if: the log continued from a moment in the simulator, with another policy, other settings, nodes or apps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.errors import Invalid, Unavailable
from dorm.api.handlers import Seen, seq_of
from dorm.api.resources.ahead.plan import Supposed
from dorm.api.routes import Call, Route
from replay.moments import AtSequence
from replay.page.forked import ForkView, fork_view
from replay.page.timeline import WIDEST

if TYPE_CHECKING:
    from replay.moments import Moment

_SPARE_S = 2.0
"""Seconds that remain of a request's time for saying that it was too short."""

_MOST_NODES = 1000
"""Nodes that join."""


class ForkAsked(Supposed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is different from the moment of the fork on; nothing, if empty."""

    horizon_s: Annotated[float, msgspec.Meta(ge=1, le=7 * 86_400)] | None = None
    """How long to simulate; default: twice the log's time after the moment, or a day."""
    width: Annotated[int, msgspec.Meta(ge=1, le=WIDEST)] = 1000
    """Pixels of the pictures; what is narrower than one is merged."""


async def fork_log(call: Call[Seen, ForkAsked]) -> Answer:
    """Continue the log from a moment (`at`), unchanged and with the changes, and compare both with what happened.

    Bounded in time; closing the request ends the simulation.  `trust` is the error of the unchanged simulation."""
    services, body = call.services, call.body
    if sum(one.count for one in body.nodes) > _MOST_NODES:
        raise Invalid(f"a fork adds at most {_MOST_NODES} nodes; `dorm whatif` has no such bound")
    seconds = services.options.limits.long_answer_s - _SPARE_S
    moment: Moment | None = None
    if (seq := await seq_of(call, call.query.at)) is not None:
        moment = AtSequence(seq)
    changes = await asyncio.to_thread(body.assumed)
    async with services.forks.turn():
        now = 0 if services.options.archive or moment is not None else services.clock()
        try:
            async with asyncio.timeout(seconds):
                found = await fork_view(
                    services.follower.log, moment, changes, now=now, horizon_s=body.horizon_s, width=body.width
                )
        except TimeoutError:
            raise Unavailable(
                f"the simulation takes longer than {seconds:.0f} s; choose a later moment or a shorter horizon, or run "
                "`dorm whatif`, which has no such bound",
                code="api.too_slow",
            ) from None
    return await asyncio.to_thread(answer, found, found.position, pack=call.packs)


ROUTES = [
    Route(
        "POST", "/v1/whatif", fork_log, "Fork the log in the simulator", query=Seen, body=ForkAsked, answer=ForkView,
        tag="moments", long=True,
    ),
]  # fmt: skip
