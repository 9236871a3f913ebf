"""The log: its events in pages, and as a stream."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.errors import Invalid, Missing
from dorm.api.following.threads import apart_if_large
from dorm.api.items import EventItem
from dorm.api.looking import MinSeq, settled
from dorm.api.resources.pages import Page
from dorm.api.routes import Call, Header, Parameters, Route
from dorm.api.streaming import streamed
from dorm.api.streams.sse import CONTENT_TYPE, Stream, last_event_id, wanted
from dorm.client.tail import Filter, Tail, check_kinds
from events.positions import Position, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from dorm.api.services import Services
    from events.positions import Logged

_TIME_S = 3.0
"""How long a page is looked for; what was found by then is the page."""
_BYTES = 4 << 20
"""Most bytes of a page's items, unless one alone has more."""
_WINDOW = 500
_SPARE = 8
_WIDER = 4
_WIDEST = 64_000

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
POSITION = r"^[0-9]{1,15}(\.[0-9]{1,9})?$"
At = Annotated[str, msgspec.Meta(pattern=POSITION, max_length=40)]
LAST_EVENT_ID = Header(
    "Last-Event-ID", "The id of the last event that was read: the stream goes on after it.", POSITION, 40
)


class EventsQuery(Parameters, frozen=True, kw_only=True):
    """Which events.  Each filter may be repeated, as any of these; all given filters have to match."""

    after: Annotated[At, msgspec.Meta(description="Only events after this position.")] | None = None
    before: Annotated[At, msgspec.Meta(description="Only events before this position: the last of them.")] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=500, description="Most items of the page.")] = 100
    app: Annotated[
        tuple[Name, ...], msgspec.Meta(max_length=16, description="What concerns this app, by id or name.")
    ] = ()
    node: Annotated[tuple[Name, ...], msgspec.Meta(max_length=16, description="What concerns this node.")] = ()
    user: Annotated[
        tuple[Name, ...], msgspec.Meta(max_length=16, description="What concerns this user and their apps.")
    ] = ()
    kind: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64, description="Only events of this kind.")] = ()
    min_seq: MinSeq | None = None

    def filter(self) -> Filter:
        """Raises TailError for an unknown kind."""
        check_kinds(self.kind)
        return Filter(
            kinds=tuple(sorted(set(self.kind))),
            apps=tuple(sorted(set(self.app))),
            users=tuple(sorted(set(self.user))),
            nodes=tuple(sorted(set(self.node))),
        )


async def list_events(call: Call[EventsQuery, None]) -> Answer | web.StreamResponse:
    """In the log's order: the first after `after`, the last before `before`, by default the latest.  With rare matches a page
    may have few items, or none, and go on (`next`, `previous`).  With `Accept: text/event-stream` it is a stream."""
    return await (stream_events(call) if wanted(call.request) else events_page(call))


async def events_page(call: Call[EventsQuery, None]) -> Answer:
    """Return a page of events.  Raises as `found_page`."""
    page = await found_page(call)
    size = sum(len(memoryview(item)) for item in page.items)
    return await apart_if_large(size, lambda: answer(page, page.position, pack=call.packs))


async def found_page(call: Call[EventsQuery, None]) -> Page[msgspec.Raw]:
    """Return a page of events, encoded.  Raises TailError, PositionError, Invalid, Missing, Unavailable, TimeoutError, and the
    log's errors."""
    query = call.query
    which = query.filter()
    if query.after is not None and query.before is not None:
        raise Invalid("give `after` or `before`, not both", code="api.parameter.conflict")
    await settled(call)
    async with asyncio.timeout(call.services.options.limits.answer_s):
        if query.after is not None:
            return await _after(call.services, which, parse(query.after), query.limit)
        end = Position(call.services.follower.seq + 1)
        return await _before(call.services, which, parse(query.before) if query.before else end, query.limit)


class _Found:
    """Items of a page, encoded, within its bounds."""

    def __init__(self, limit: int, encode: Callable[[Logged], bytes]) -> None:
        self.items: list[msgspec.Raw] = []
        self.positions: list[Position] = []
        self._limit, self._bytes, self._encode = limit, 0, encode

    def take(self, one: Logged) -> bool:
        """Add an item; return whether the page is full without it."""
        body = self._encode(one)
        if len(self.items) >= self._limit or (self.items and self._bytes + len(body) > _BYTES):
            return True
        self.items.append(msgspec.Raw(body))
        self.positions.append(one.position)
        self._bytes += len(body)
        return False


async def _after(services: Services, which: Filter, after: Position, limit: int) -> Page[msgspec.Raw]:
    end = services.follower.seq
    if after.seq > end:
        raise Missing(f"the log ends at {end}, before {after}", code="moment.after_end")
    tail = Tail(services.recent, services.cluster, which, after=after, until=end)
    found = _Found(limit, services.encoded.of)
    more: Position | None = None
    try:
        async with asyncio.timeout(_TIME_S), aclosing(tail.events()) as events:
            async for one in events:
                if found.take(one):
                    more = found.positions[-1]
                    break
    except TimeoutError:
        more = tail.position
    first = found.positions[0] if found.positions else after
    return Page(
        items=found.items,
        next=str(more) if more is not None else None,
        previous=str(first) if first.seq else None,
        position=str(end),
    )


async def _before(services: Services, which: Filter, before: Position, limit: int) -> Page[msgspec.Raw]:
    """Search backwards in windows that grow, so that the last few of a long log are found fast."""
    end = services.follower.seq
    if before.seq > end + 1:
        raise Missing(f"the log ends at {end}, before {before}", code="moment.after_end")
    found: list[Logged] = []
    upto, started = before, asyncio.get_running_loop().time()
    # Without a filter nearly every record is an item of the page.
    window = _WINDOW if which != Filter() else limit + _SPARE
    while len(found) <= limit and upto.seq > 0:
        # Everything up to the last record that may hold some of it.
        last = upto.seq if upto.index is not None else upto.seq - 1
        first = max(0, last - window)
        if asyncio.get_running_loop().time() - started > _TIME_S:
            break
        part: list[Logged] = []
        tail = Tail(services.recent, services.cluster, which, after=Position(first), until=last)
        async with aclosing(tail.events()) as events:
            async for one in events:
                if not _is_before(one.position, upto):
                    break
                part.append(one)
                if len(part) > 2 * limit + 2:
                    del part[: limit + 1]
        found = [*part, *found][-(limit + 1) :]
        upto, window = Position(first + 1), min(window * _WIDER, _WIDEST)
        if first == 0:
            upto = Position(0)
    page = _Found(limit, services.encoded.of)
    kept: list[Logged] = []
    for one in reversed(found[-limit:]):
        if page.take(one):
            break
        kept.append(one)
    page.items.reverse()
    kept.reverse()
    more = len(kept) < len(found)
    previous = str(kept[0].position) if more and kept else str(upto) if upto.seq else None
    return Page(
        items=page.items,
        next=str(kept[-1].position) if kept and before.seq <= end else None,
        previous=previous,
        position=str(end),
    )


def _is_before(one: Position, upto: Position) -> bool:
    if one.seq != upto.seq:
        return one.seq < upto.seq
    return upto.index is not None and (one.index or 0) < upto.index


async def stream_events(call: Call[EventsQuery, None]) -> web.StreamResponse:
    """Each event once and in order, with its position as id; `Last-Event-ID` resumes exactly there, `after` starts there, and
    without either the stream starts now."""
    services, request = call.services, call.request
    which = call.query.filter()
    text = last_event_id(request) or call.query.after
    after = await services.events.begin(parse(text) if text is not None else None)

    async def serve(stream: Stream) -> None:
        await services.events.serve(stream, which, after)

    return await streamed(call, serve, str(after))


ROUTES = [
    Route(
        "GET", "/v1/events", list_events, "List events", query=EventsQuery, answer=Page[EventItem], tag="log",
        media=(CONTENT_TYPE,),
    ),
    Route(
        "GET", "/v1/events/stream", stream_events, "Follow events", query=EventsQuery, tag="log", media=(CONTENT_TYPE,),
        headers=(LAST_EVENT_ID,),
    ),
]  # fmt: skip
