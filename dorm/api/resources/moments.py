"""The cluster at any moment: the state, the view that a page draws, partitions over time, and differences."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from dorm.api.errors import Invalid, Missing
from dorm.api.handlers import At, MinSeq, Seen, answer_from_state, parse_moment, seq_of, settled, streamed
from dorm.api.past_folds import Drawing
from dorm.api.resources.events import LAST_EVENT_ID, POSITION
from dorm.api.resources.policy import Settings, shown_settings
from dorm.api.responses import Answer, answer
from dorm.api.routes import Call, Parameters, Route
from dorm.api.streams import CONTENT_TYPE, last_event_id
from dorm.core.query.views import AppRow, NodeRow, Summary, app_rows, node_rows, summary
from dorm.core.state import Counters, State, digest
from events.cloudevents import rfc3339
from events.log.interface import time_of
from events.positions import parse
from replay.diff import Diff, settings_between
from replay.diff import diff as difference
from replay.diff import only as concerning
from replay.moments import AtSequence, AtTime
from replay.page.timeline import APPS, WIDEST, TimelineView
from replay.page.view import View, decision_in, view
from replay.travel import reported_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from dorm.api.streams import Stream


class StateDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The state at one moment, as `dorm state` shows it.  Ended apps are left out; /v1/apps lists them in pages."""

    position: str
    at: str | None
    """Log time; null before the first record."""
    epoch: int
    digest: str
    """Equal for equal states only."""
    settings: Settings
    summary: Summary
    apps: list[AppRow]
    nodes: list[NodeRow]
    counters: Counters


class Timespan(Parameters, frozen=True, kw_only=True, rename={"begin": "from"}):
    """Which partitions over time."""

    begin: Annotated[At, msgspec.Meta(description="The first moment; default: the log's first record.")] | None = None
    to: Annotated[At, msgspec.Meta(description="The last moment; default: now.")] | None = None
    width: Annotated[
        int, msgspec.Meta(ge=1, le=WIDEST, description="Pixels of the drawing; what is narrower than one is merged.")
    ] = 1000
    page: Annotated[
        int, msgspec.Meta(ge=0, le=2**53, description=f"Apps submitted after this sequence (`next`), {APPS} at most.")
    ] = 0
    apps: Annotated[tuple[str, ...], msgspec.Meta(max_length=APPS, description="Only these apps, by id.")] = ()
    min_seq: MinSeq | None = None


class Between(Parameters, frozen=True, kw_only=True, rename={"begin": "from"}):
    """Two moments."""

    begin: Annotated[At, msgspec.Meta(description="The first moment.")]
    to: Annotated[At, msgspec.Meta(description="The second moment; default: now.")] | None = None
    only: Annotated[str, msgspec.Meta(max_length=512, description="Only this app or node.")] | None = None
    min_seq: MinSeq | None = None


class After(Parameters, frozen=True, kw_only=True):
    """Where a stream of changes starts."""

    after: (
        Annotated[
            str,
            msgspec.Meta(
                pattern=POSITION,
                max_length=40,
                description="The position of the view to change.",
            ),
        ]
        | None
    ) = None


async def get_state(call: Call[Seen, None]) -> Answer:
    """The whole state, with its digest."""

    def build(state: State) -> StateDocument:
        return StateDocument(
            position=str(state.seq),
            at=rfc3339(state.time) if state.time else None,
            epoch=state.epoch,
            digest=digest(state),
            settings=shown_settings(state.settings),
            summary=summary(state),
            apps=app_rows(state, state.time, ended=False),
            nodes=node_rows(state),
            counters=state.counters,
        )

    return await answer_from_state(call, build)


async def get_view(call: Call[Seen, None]) -> Answer:
    """What the page draws of one moment, compact.  Nodes name apps by their place in `apps`."""
    services = call.services

    async def prepare(state: State) -> Callable[[State], View]:
        last = state.figures.seq
        record = await services.recent.record_at(last) if last else None
        decided = decision_in(record) if record is not None else None
        return lambda state: view(state, decided)

    shown = await answer_from_state(call, services.view.view, prepare)
    services.view.publish()
    return shown


async def follow_view(call: Call[After, None]) -> web.StreamResponse:
    """Events `change`: whole entries that differ from the view before, with the records since; nodes name apps by id.
    `reset` says that changes were missed: fetch the view again."""
    services = call.services
    text = last_event_id(call.request) or call.query.after
    after = parse(text) if text is not None else None

    async def serve(stream: Stream) -> None:
        await services.view.serve(stream, after)

    return await streamed(call, serve, str(after or services.follower.seq))


async def get_timeline(call: Call[Timespan, None]) -> Answer:
    """Partitions over time; times inside are milliseconds after `from`.  The size of the answer follows from the width."""
    query, services = call.query, call.services
    await settled(call)
    begin = 0 if query.begin is None else await _time(call, query.begin)
    finish = None if query.to is None else await _time(call, query.to)
    if finish is not None and finish < begin:
        raise Invalid("`to` is before `from`", code="moment.end_before_start")
    seq = services.follower.seq
    drawing = Drawing(query.width, query.page, frozenset(query.apps))
    timeline = await services.pictures.draw(begin, finish, drawing)
    return await asyncio.to_thread(answer, timeline, seq, pack=call.packs)


async def _time(call: Call[Any, Any], text: str) -> int:
    """Return the log time of a moment (UTC ns)."""
    services, moment = call.services, parse_moment(text)
    if isinstance(moment, AtTime):
        return moment.time
    if isinstance(moment, AtSequence):
        return await time_of(services.recent, await services.moments.seq_of(moment))
    return services.follower.time - moment.span


async def get_diff(call: Call[Between, None]) -> Answer:
    """What changed from one moment to another: apps, their places, nodes, settings."""
    query, services = call.query, call.services
    states = []
    for text in (query.begin, query.to):
        seq = await seq_of(call, text)
        if seq is None:
            states.append(await services.moments.present())
        else:
            states.append(await services.moments.state(seq))
    before, after = states
    log = services.follower.log
    moments = [None if text is None else parse_moment(text) for text in (query.begin, query.to)]
    newest = [await reported_at(log, state, moment) for state, moment in zip(states, moments, strict=True)]
    set_by = await settings_between(log, before, after)

    def work() -> Answer:
        if query.only is not None and not any(
            state.find_app(query.only) or query.only in state.nodes for state in states
        ):
            raise Missing(f"at neither moment was there an app or node {query.only!r}", code="name.not_found")
        diff = difference(before, after, set_by, (newest[0], newest[1]))
        shown = diff if query.only is None else concerning(diff, query.only)
        return answer(shown, after.seq, pack=call.packs)

    return await services.heavy.run(work)


ROUTES = [
    Route("GET", "/v1/state", get_state, "The state at a moment", query=Seen, answer=StateDocument, tag="moments"),
    Route("GET", "/v1/view", get_view, "What the page draws", query=Seen, answer=View, tag="moments"),
    Route(
        "GET", "/v1/view/changes", follow_view, "Follow the view", query=After, tag="moments", media=(CONTENT_TYPE,),
        headers=(LAST_EVENT_ID,),
    ),
    Route(
        "GET", "/v1/timeline", get_timeline, "Partitions over time", query=Timespan, answer=TimelineView, tag="moments",
        long=True,
    ),
    Route("GET", "/v1/diff", get_diff, "The difference between two moments", query=Between, answer=Diff, tag="moments"),
]  # fmt: skip
