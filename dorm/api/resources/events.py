"""The log: its events in pages, and as a stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.errors import Invalid
from dorm.api.event_pages import EventItem
from dorm.api.handlers import MinSeq, Page, settled, streamed
from dorm.api.routes import Call, Header, Parameters, Route
from dorm.api.streams import CONTENT_TYPE, Stream, last_event_id, wanted
from dorm.api.threads import apart_if_large
from dorm.client.tail import Filter, check_kinds
from events.positions import parse

if TYPE_CHECKING:
    from aiohttp import web

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
POSITION = r"^[0-9]{1,15}(\.[0-9]{1,9})?(~[0-9]{1,15})?$"
At = Annotated[str, msgspec.Meta(pattern=POSITION, max_length=40)]
LAST_EVENT_ID = Header(
    "Last-Event-ID", "The id of the last event that was read: the stream goes on after it.", POSITION, 40
)


class EventsQuery(Parameters, frozen=True, kw_only=True):
    """Which events.  A repeated filter matches any of its values; all given filters must match."""

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
    """In the log's order, with the progress beside it: the first after `after`, the last before `before`, by default the
    latest. With rare matches a page may have few items, or none, and still continue (`next`, `previous`).  `next`, `previous`
    and `position` say how far both were read, so pages lose and repeat nothing.  With `Accept: text/event-stream` it is a
    stream."""
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
    pages = call.services.event_pages
    async with asyncio.timeout(call.services.options.limits.answer_s):
        if query.after is not None:
            found = await pages.after(which, parse(query.after), query.limit)
        else:
            found = await pages.before(which, parse(query.before) if query.before else None, query.limit)
    return Page(items=found.items, next=found.next, previous=found.previous, position=found.position)


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
