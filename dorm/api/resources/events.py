"""The log: its events in pages and as a stream, and the master's decisions, each with everything it is based on."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.errors import Invalid, Missing
from dorm.api.event_pages import EventItem
from dorm.api.handlers import MinSeq, Page, settled, streamed
from dorm.api.routes import Call, Header, Link, Parameters, Route
from dorm.api.streams import CONTENT_TYPE, Stream, last_event_id, wanted
from dorm.api.threads import apart_if_large
from dorm.client.tail import Filter, check_kinds
from dorm.core.query.concerns import NAMES_OF_KINDS
from events.cloudevents import plain, rfc3339
from events.kinds import Resized, Round
from events.positions import parse
from replay.gist import gist
from replay.page.view import decision_in

if TYPE_CHECKING:
    from aiohttp import web


# --- events -----------------------------------------------------------------------------------------------------------

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
POSITION = r"^[0-9]{1,15}(\.[0-9]{1,9})?(~[0-9]{1,15})?$"
At = Annotated[str, msgspec.Meta(pattern=POSITION, max_length=40)]
KindName = Annotated[str, msgspec.Meta(min_length=1, max_length=512, extra_json_schema={"enum": list(NAMES_OF_KINDS)})]
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
    kind: Annotated[tuple[KindName, ...], msgspec.Meta(max_length=64, description="Only events of this kind.")] = ()
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
            page = await pages.after(which, parse(query.after), query.limit)
        else:
            page = await pages.before(which, parse(query.before) if query.before else None, query.limit)
    return Page(items=page.items, next=page.next, previous=page.previous, position=page.position)


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


# --- decisions --------------------------------------------------------------------------------------------------------


class DecisionsQuery(Parameters, frozen=True, kw_only=True):
    """Which decisions."""

    after: Annotated[At, msgspec.Meta(description="Only decisions after this position.")] | None = None
    before: Annotated[At, msgspec.Meta(description="Only decisions before this position: the last of them.")] | None = (
        None
    )
    limit: Annotated[int, msgspec.Meta(ge=1, le=100, description="Most items of the page.")] = 20
    min_seq: MinSeq | None = None


class DecisionItem(msgspec.Struct, frozen=True, kw_only=True):
    """One decision in a list."""

    position: str
    at: str
    policy: str
    trigger: str
    status: str
    changes: int
    """Apps that it starts, changes or stops."""
    reasons: int
    """Apps that wait or have less than they could use, with the reason."""
    utilization: float
    fairness_loss: float
    fairness_budget: float
    """-1 if the policy has none."""
    overhead: int
    """Running apps that it changes without being forced to."""
    overhead_budget: int
    """-1 if the policy has none."""
    text: str


class Decision(DecisionItem, frozen=True, kw_only=True):
    """A decision with everything that it says."""

    epoch: int
    basis: int
    """The record up to which the master had read."""
    body: dict[str, Any]
    """The fact `Resized` itself."""


async def list_decisions(call: Call[DecisionsQuery, None]) -> Answer:
    """In the log's order, the latest by default."""
    query = call.query
    resizes = EventsQuery(
        after=query.after, before=query.before, limit=query.limit, kind=("Resized",), min_seq=query.min_seq
    )
    page = await found_page(Call(call.services, call.request, resizes, None, call.user))
    size = sum(len(memoryview(item)) for item in page.items)
    return await apart_if_large(size, partial(_as_decisions, page, call.packs))


def _as_decisions(page: Page[msgspec.Raw], pack: bool) -> Answer:
    events = [msgspec.json.decode(item, type=dict[str, Any]) for item in page.items]
    items = [_item(event["position"], event["at"], event["text"], event["body"]) for event in events]
    made = Page(items=items, next=page.next, previous=page.previous, position=page.position)
    return answer(made, page.position, pack=pack)


def _item(position: str, at: str, text: str, body: dict[str, Any]) -> DecisionItem:
    return DecisionItem(**_fields(position, at, text, body))


def _fields(position: str, at: str, text: str, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "position": position,
        "at": at,
        "policy": body["policy"],
        "trigger": body.get("trigger", "events"),
        "status": body["status"],
        "changes": len(body["changes"]),
        "reasons": len(body["reasons"]),
        "utilization": body["utilization"],
        "fairness_loss": body["fairness_loss"],
        "fairness_budget": body["fairness_budget"],
        "overhead": body["overhead"],
        "overhead_budget": body["overhead_budget"],
        "text": text,
    }


async def get_decision(call: Call[Parameters, None]) -> Answer:
    """By its position; the sequence alone will do."""
    wanted = parse(call.path("position"))
    await call.services.follower.reach(wanted.seq, call.services.options.limits.behind_s)
    record = await call.services.recent.record_at(wanted.seq)
    logged = decision_in(record) if record is not None else None
    if logged is None or (wanted.index is not None and logged.position != wanted):
        raise Missing(f"there is no decision at {wanted}; /v1/decisions lists them", code="decision.not_found")
    assert isinstance(logged.event, Resized)
    assert isinstance(logged.round, Round)
    body = plain(logged.event)
    fields = _fields(str(logged.position), rfc3339(logged.time), gist(logged.event), body)
    made = Decision(**fields, epoch=logged.round.epoch, basis=logged.round.basis, body=body)
    return await asyncio.to_thread(answer, made, str(logged.position), pack=call.packs)


DECISION_ROUTES = [
    Route(
        "GET", "/v1/decisions", list_decisions, "List decisions", query=DecisionsQuery, answer=Page[DecisionItem], tag="log",
        links=(Link("get_decision", "position", "$response.body#/items/0/position"),),
    ),
    Route("GET", "/v1/decisions/{position}", get_decision, "Look at a decision", answer=Decision, tag="log"),
]  # fmt: skip
