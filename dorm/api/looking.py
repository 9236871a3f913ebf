"""Answers from a state: the present one, or that of the moment which a request names.

The answer follows from state and request alone, so it is kept with its position, and requests that ask the same at once share
one computation.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from dorm.api.answers import Answer, answer, packed
from dorm.api.routes import Call, Parameters
from dorm.api.threads import apart_if_large
from events.positions import PositionError
from events.positions import parse as position_of
from replay.moments import AtSequence, MomentError
from replay.moments import parse as moment_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dorm.core.state import State
    from replay.moments import Moment

At = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^([0-9]{1,15}(\.[0-9]{1,9})?(~[0-9]{1,15})?|-[0-9]{1,9}(\.[0-9]{1,6})?(ns|us|ms|s|m|h|d|w)|"
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?([Zz]|[+ -][0-9]{2}:[0-9]{2})?)?)$",
        max_length=64,
        description="A moment of the log: a sequence (120), a position (118.2), a time (2026-11-21T09:00:00Z) or how long "
        "before the log's last record (-10m).  Default: now.",
    ),
]
MinSeq = Annotated[
    int,
    msgspec.Meta(
        ge=0,
        le=2**53,
        description="Answer from a state that includes this record: the position that a write returned.",
    ),
]


class Seen(Parameters, frozen=True, kw_only=True):
    """Parameters of every read of a state."""

    at: At | None = None
    min_seq: MinSeq | None = None


def parse_moment(text: str) -> Moment:
    """Return a moment as people write it; a position stands for its whole record.  Raises MomentError."""
    try:
        return AtSequence(position_of(text).seq)
    except PositionError:
        return moment_of(text)


async def settled(call: Call[Any, Any]) -> None:
    """Wait until this process has folded what the request wants to see (`min_seq`).  Raises Missing, Unavailable."""
    if (wanted := getattr(call.query, "min_seq", None)) is not None:
        await call.services.follower.reach(wanted, call.services.options.limits.behind_s)


async def seq_of(call: Call[Any, Any], text: str | None) -> int | None:
    """Return the sequence of a moment of the past, None for the present.  Raises MomentError, Missing, Unavailable."""
    await settled(call)
    if text is None:
        return None
    seq = await call.services.moments.seq_of(parse_moment(text))
    wanted = getattr(call.query, "min_seq", None)
    if wanted is not None and seq < wanted:
        raise MomentError(f"at {text} is before min_seq {wanted}", code="moment.before_min_seq")
    return None if seq == call.services.follower.seq else seq


async def seen(
    call: Call[Any, Any],
    build: Callable[[State], Any],
    prepare: Callable[[State], Awaitable[Callable[[State], Any]]] | None = None,
    *,
    turn: int = 0,
) -> Answer:
    """Return the answer that `build` makes of the state; it runs in a thread and returns what can be encoded, or an `Answer`
    with headers of its own.  For a moment of the past, `prepare` looks up what the log adds to that state, and returns what
    builds the answer. `turn` counts the changes of what the answer shows besides the state."""
    services, pack = call.services, call.packs

    def made(state: State) -> Answer:
        found = build(state)
        return found if isinstance(found, Answer) else answer(found, state.seq)

    seq = await seq_of(call, getattr(call.query, "at", None))
    # Of several tenants' apps of one name, each user means their own.
    asked = f"{call.request.path_qs} {call.user if call.request.match_info else ''}"
    key = (asked if seq is not None or not turn else f"{asked} {turn}", pack)
    kept = services.answers.get(key, services.follower.seq if seq is None else seq)
    if kept is not None:
        return kept
    if seq is not None:
        state = await services.moments.state(seq)
        build = await prepare(state) if prepare is not None else build
        found = await _whole(await services.heavy.run(lambda: made(state)), pack=pack)
    else:

        async def present() -> Answer:
            try:
                found = await services.follower.look(made, build.__qualname__)
            finally:
                del services.computing[key]
            return await _whole(found, pack=pack)

        # One that is being computed sees everything that is folded by now: the state has one thread.
        if key not in services.computing:
            task = services.computing[key] = asyncio.create_task(present())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        found = await asyncio.shield(services.computing[key])
    services.answers.keep(key, found)
    return found


async def _whole(found: Answer, *, pack: bool) -> Answer:
    """Return an answer, also compressed for clients that take gzip; not in the state's thread, for which others wait."""
    if not pack:
        return found
    body = found.body
    return msgspec.structs.replace(found, packed=await apart_if_large(len(body), lambda: packed(body)))
