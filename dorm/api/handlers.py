"""What handlers share.

An answer from a state, the present one or that of the moment which a request names, follows from state and request alone.
So it is kept with its position, and requests that ask the same at once share one computation.  A stream is opened,
counted, and ended with a problem if something fails after it began.  A page of a list starts after an item, never at an
offset, so its cost does not depend on what came before.  A request to the cluster is stored on the log by a client of the
request's user, and answered with its position.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec

from dorm.api.answers import POSITION, Answer, answer, packed, problem_of
from dorm.api.connections import SECURITY, address_of
from dorm.api.errors import Malformed
from dorm.api.routes import Call, Parameters
from dorm.api.streams import Stream, frame
from dorm.api.threads import apart_if_large
from events.errors import DormError
from events.limits import LONGEST_NAME
from events.positions import PositionError
from events.positions import parse as position_of
from replay.moments import AtSequence, MomentError
from replay.moments import parse as moment_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from aiohttp import web

    from dorm.api.follower import Requester
    from dorm.api.routes import Call
    from dorm.core.state import State
    from replay.moments import Moment


# --- answers from a state ---------------------------------------------------------------------------------------------

_MOMENTS = (
    r"^([0-9]{1,15}(\.[0-9]{1,9})?(~[0-9]{1,15})?|-[0-9]{1,9}(\.[0-9]{1,6})?(ms|s|m|h|d)|"
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])([Tt ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?"
    r"([Zz]|[+ -]([01][0-9]|2[0-3]):[0-5][0-9])?)?)$"
)
"""What is a moment, for clients; what only looks like one gets an answer in words."""
At = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^([0-9]{1,15}(\.[0-9]{1,9})?(~[0-9]{1,15})?|-[0-9]{1,9}(\.[0-9]{1,6})?(ns|us|ms|s|m|h|d|w)|"
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?([Zz]|[+ -][0-9]{2}:[0-9]{2})?)?)$",
        extra_json_schema={"pattern": _MOMENTS},
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


async def answer_from_state(
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
        built = build(state)
        return built if isinstance(built, Answer) else answer(built, state.seq)

    seq = await seq_of(call, getattr(call.query, "at", None))
    # Of several tenants' apps of one name, each user means their own.
    request = f"{call.request.path_qs} {call.user if call.request.match_info else ''}"
    key = (request if seq is not None or not turn else f"{request} {turn}", pack)
    kept = services.answers.get(key, services.follower.seq if seq is None else seq)
    if kept is not None:
        return kept
    if seq is not None:
        state = await services.moments.state(seq)
        build = await prepare(state) if prepare is not None else build
        whole = await _whole(await services.heavy.run(lambda: made(state)), pack=pack)
    else:

        async def present() -> Answer:
            try:
                built = await services.follower.look(made, build.__qualname__)
            finally:
                del services.computing[key]
            return await _whole(built, pack=pack)

        # One that is being computed sees everything that is folded by now: the state has one thread.
        if key not in services.computing:
            task = services.computing[key] = asyncio.create_task(present())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        whole = await asyncio.shield(services.computing[key])
    services.answers.keep(key, whole)
    return whole


async def _whole(whole: Answer, *, pack: bool) -> Answer:
    """Return an answer, also compressed for clients that take gzip; not in the state's thread, for which others wait."""
    if not pack:
        return whole
    body = whole.body
    return msgspec.structs.replace(whole, packed=await apart_if_large(len(body), lambda: packed(body)))


# --- answers that are streams -----------------------------------------------------------------------------------------


async def streamed(
    call: Call[Any, Any], serve: Callable[[Stream], Awaitable[None]], position: str
) -> web.StreamResponse:
    """Open a stream and let `serve` write to it until it ends. Raises TooMany, Unavailable, NotAcceptable."""
    services, request = call.services, call.request
    known = call.user if services.door.closed else ""
    with services.addresses.stream(address_of(request.transport), known):
        stream = Stream(request, services.options.limits)
        response = await stream.open({**SECURITY, POSITION: position})
        try:
            with services.door.watching(request, stream.end):
                await serve(stream)
        except ConnectionError:
            pass  # The reader has gone; one that comes back resumes.
        except DormError as error:
            with contextlib.suppress(ConnectionError):
                await stream.write([frame("", "problem", msgspec.json.encode(problem_of(error)))])
        finally:
            await stream.close()
        return response


# --- lists in pages ---------------------------------------------------------------------------------------------------

T = TypeVar("T")
U = TypeVar("U")

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000, description="Most items of the page.")]


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list."""

    items: list[T]
    next: str | None
    """What to pass as `after` for the next page; null on the last one."""
    previous: str | None
    """What to pass as `before` for the page before; null on the first one, or if a list has no way back."""
    position: str
    """The position of the log that the page is of."""


def paged(rows: Iterable[U], key: Callable[[U], str], limit: int) -> tuple[list[U], str | None]:
    """Return the first items, and what the next page starts after."""
    items: list[U] = []
    for row in rows:
        if len(items) == limit:
            return items, key(items[-1])
        items.append(row)
    return items, None


# --- requests to the cluster ------------------------------------------------------------------------------------------

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


def stored(body: Any, made: Requester, status: int = 202) -> Answer:
    return answer(body, made.stored, status=status)


def idempotency_key(call: Call[Any, Any]) -> str | None:
    """Return the id of a submission that the client chose.  Raises Malformed."""
    given = call.request.headers.get(KEY)
    if given is None:
        return None
    if not re.fullmatch(KEY_PATTERN, given):
        raise Malformed(f"{KEY}: 1 to {LONGEST_NAME} printable ASCII characters", code="api.idempotency_key.malformed")
    return given
