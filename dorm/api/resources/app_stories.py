"""Why an app has what it has and what happened to it, its curves, and the output of its containers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from aiohttp import web

from dorm.api.answers import POSITION, Answer, answer
from dorm.api.connections import SECURITY, address_of
from dorm.api.errors import Missing
from dorm.api.handlers import Seen, answer_from_state, seq_of, streamed
from dorm.api.lives import Subject
from dorm.api.routes import Call, Parameters, Route
from dorm.api.streams import CONTENT_TYPE, HEARTBEAT, frame, wanted
from dorm.client.finding import find_app
from dorm.client.output import STAMP, stamp, timed_lines
from dorm.core.asking import problem_of
from events.cloudevents import rfc3339
from replay.moments import parse_clock
from replay.simulator.forks.starting import Start, forecast
from replay.story.chapters import Chapter
from replay.story.explain import explain
from replay.story.explanation import Explanation
from replay.story.speed import SpeedCurve, speed_curve
from replay.travel.travel import clock_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from dorm.api.lives import Life
    from dorm.api.streams import Stream
    from dorm.core.state import State

TEXT = "text/plain"
_BEAT_S = 10.0
"""Seconds between two looks at whether the client of a quiet container is still there."""
_LINE = 64 << 10
"""Bytes of a line of output after which it is cut into two events."""

Last = Annotated[int, msgspec.Meta(ge=1, le=2000, description="Only the last chapters.")]


class StoryQuery(Seen, frozen=True, kw_only=True):
    """Parameters of a story."""

    last: Last = 500


class StoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, in order, each chapter with its causes.  Times are UTC nanoseconds, as `dorm story -o json` has them."""

    name: str
    id: str
    kind: str
    seq: int
    at: int
    totals: dict[str, Any] | None
    """An app's or a node's life in numbers."""
    earlier: int
    """How many chapters came before these."""
    chapters: list[Chapter]


class ExplainAnswer(Explanation, frozen=True, kw_only=True):
    """Why an app has what it has; times are UTC nanoseconds, as `dorm explain -o json` has them."""

    start: Start | None = None
    """Of an app that waits: when it will start."""


class ProgressPoint(msgspec.Struct, frozen=True):
    """What the app reported."""

    at: str
    step: int
    loss: float | None
    samples_per_s: float | None
    generation: int
    loss_is: str = ""
    """`nan`, `inf` or `-inf` if the loss is not a finite number."""


class Progress(msgspec.Struct, frozen=True):
    """The course of an app's work, thinned to a bounded number of points."""

    id: str
    name: str
    steps: int | None
    """How many it has to do."""
    points: list[ProgressPoint]
    complete: bool
    """Whether it contains all reports up to `position`; a repeated request continues from there."""
    position: str


class ProgressQuery(Seen, frozen=True, kw_only=True):
    """Parameters of the course of an app's work."""

    width: Annotated[int, msgspec.Meta(ge=2, le=4000, description="Most points.")] = 500


class LogsQuery(Parameters, frozen=True, kw_only=True):
    """Which container's output."""

    slot: Annotated[int, msgspec.Meta(ge=0, le=2**20, description="Which container; default: the first.")] | None = None
    follow: Annotated[bool, msgspec.Meta(description="Go on until the container ends.")] = False
    tail: Annotated[int, msgspec.Meta(ge=0, le=100_000, description="Only the last lines.")] | None = None
    since: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=64,
                description="Only lines from this time on (`14:05`, a time), from so long ago (`-10m`), or from when a record "
                "came on the log. Lines whose time is not known stay.",
            ),
        ]
        | None
    ) = None
    timestamps: Annotated[
        bool, msgspec.Meta(description="Give each line the time at which it was written, by its node's clock.")
    ] = False


async def story_of(call: Call[StoryQuery, None], subject: Subject) -> Answer:
    """The story of an app or a node."""
    services = call.services
    seq = await seq_of(call, call.query.at)
    upto = services.follower.seq if seq is None else seq
    return await services.lives.ask(subject, upto, partial(_story, call.query.last, call.packs))


def _story(last: int, pack: bool, life: Life) -> Answer:
    story = life.story
    if story is None:
        raise Missing(f"there is no app of this name up to record {life.seq}", code="app.not_found")
    shown = story.chapters[-last:]
    made = StoryAnswer(
        name=story.name,
        id=story.id,
        kind=story.kind,
        seq=story.seq,
        at=story.at,
        totals=msgspec.to_builtins(story.totals),
        earlier=len(story.chapters) - len(shown),
        chapters=shown,
    )
    return answer(made, story.seq, pack=pack)


async def app_story(call: Call[StoryQuery, None]) -> Answer:
    """What happened to it: who submitted it, why it waited, which decisions made it grow or shrink, and for which apps."""
    return await story_of(call, Subject(call.path("app")))


async def node_story(call: Call[StoryQuery, None]) -> Answer:
    """When it came and went, what was decided for it, what ran there."""
    return await story_of(call, Subject(call.path("node"), node=True))


async def explain_app(call: Call[Seen, None]) -> Answer:
    """Its share, what keeps it from more, the decision that said so; of an app that waits, when it will start."""
    services = call.services
    seq = await seq_of(call, call.query.at)
    upto = services.follower.seq if seq is None else seq
    now = services.clock() if seq is None else 0
    return await services.lives.ask(Subject(call.path("app")), upto, partial(_explained, now, call.packs))


def _explained(now: int, pack: bool, life: Life) -> Answer:
    explanation = explain(life.state, life.witness, max(life.state.time, now))
    start = forecast(life.outlook, life.state, explanation.id, explanation.at)
    fields = {name: getattr(explanation, name) for name in explanation.__struct_fields__}
    return answer(ExplainAnswer(**fields, start=start), explanation.seq, pack=pack)


async def app_speed(call: Call[Seen, None]) -> Answer:
    """What is known of its speed by its number of containers; null for one that has ended or pauses."""

    def build(state: State) -> SpeedCurve | None:
        app = find_app(state, call.path("app"), call.user)
        problem = problem_of(state, state.time)
        demand = next((each for each in problem.apps if each.id == app.id), None)
        return speed_curve(demand, problem.nodes) if demand is not None else None

    return await answer_from_state(call, build)


# --- progress -----------------------------------------------------------------------------------------------------------


async def app_progress(call: Call[ProgressQuery, None]) -> Answer:
    """Step, loss and rate over time, as the app reported them, thinned to `width` points."""
    services = call.services
    seq = await seq_of(call, call.query.at)

    def look(state: State) -> tuple[str, str, int, int | None]:
        app = find_app(state, call.path("app"), call.user)
        return app.id, app.name, app.seq, app.spec.steps or None

    if seq is None:
        id, name, submitted, steps = await services.follower.look(look)
    else:
        id, name, submitted, steps = await services.moments.look(seq, look)
    upto = services.follower.seq
    seconds = services.options.limits.answer_s / 3
    course, complete = await services.courses.of(id, submitted, upto, seconds)
    latest = None if seq is None else await services.moments.look(seq, lambda state: state.time)
    points = [
        ProgressPoint(rfc3339(time), event.step, event.loss, event.samples_per_s, event.generation, event.loss_is)
        for time, event in course.thinned(call.query.width)
        if latest is None or time <= latest
    ]
    made = Progress(id, name, steps, points, complete, str(upto if seq is None else seq))
    return await asyncio.to_thread(answer, made, made.position, pack=call.packs)


# --- output -------------------------------------------------------------------------------------------------------------


async def app_logs(call: Call[LogsQuery, None]) -> web.StreamResponse:
    """What one container of the latest generation wrote, from its node's agent.  As text, or, with `Accept:
    text/event-stream`, as events `line`, and `missed` where lines are missing because they were not read in time."""
    services, query, request = call.services, call.query, call.request
    limits = services.options.limits
    missed: list[dict[str, int | None]] = []
    async with aclosing(_output_of(call, missed)) as source:
        # The first piece, or the refusal, comes before the answer's head.
        output = _Output(source, request, missed)
        first = await output.next(None if query.follow else limits.answer_s)
        if wanted(request):

            async def serve(stream: Stream) -> None:
                await (_timed_lines if query.timestamps else _lines)(stream, output, first)

            return await streamed(call, serve, str(services.follower.seq))
        with services.addresses.stream(address_of(request.transport)):
            headers = {"Content-Type": f"{TEXT}; charset=utf-8", "Cache-Control": "no-store", **SECURITY}
            response = web.StreamResponse(headers={**headers, POSITION: str(services.follower.seq)})
            await response.prepare(request)
            piece = first
            while piece is not None:
                async with asyncio.timeout(limits.write_s):
                    await response.write(piece)
                piece = await output.next()
            await response.write_eof()
            return response


async def _output_of(call: Call[LogsQuery, None], missed: list[dict[str, int | None]]) -> AsyncGenerator[bytes, None]:
    """Yield what the container wrote: as it is, or whole lines with their times.  What is missing before a piece is added to
    `missed` first."""
    query, client = call.query, call.services.requester(call.user)
    since = None
    if query.since is not None:
        moment = parse_clock(query.since, call.services.clock())
        since = await clock_of(call.services.follower.log, moment)
    ran = await client.output.generation(await client.app(call.path("app")))
    slot = ran.slot(slot=query.slot)

    def note(lines: int | None, size: int) -> None:
        missed.append({"lines": lines, "bytes": size})

    if not query.timestamps:
        async for piece in client.output.read_slot(
            ran, slot, follow=query.follow, tail=query.tail, since=since, missed=note
        ):
            yield piece
        return
    async for line in timed_lines(
        client.output.read_timed(ran, slot, follow=query.follow, tail=query.tail, since=since, missed=note)
    ):
        yield stamp(line.time or 0).encode() + b" " + line.text + b"\n"


class _Output:
    """Pieces of a container's output, for a client that may go away while nothing is written."""

    def __init__(self, source: AsyncIterator[bytes], request: web.Request, missed: list[dict[str, int | None]]) -> None:
        self._source = source
        self._request = request
        self._missed = missed

    def missed(self) -> list[bytes]:
        """Return an event for each part that is missing before the last piece."""
        frames = [frame("", "missed", msgspec.json.encode(gap)) for gap in self._missed]
        self._missed.clear()
        return frames

    async def next(
        self, timeout: float | None = None, beat: Callable[[], Awaitable[None]] | None = None
    ) -> bytes | None:
        """Return the next piece, None at the end or if the client has gone; call `beat` while there is none.  Raises
        TimeoutError, and what the source raises."""
        waiting = asyncio.ensure_future(anext(self._source, None))
        try:
            async with asyncio.timeout(timeout):
                while not (await asyncio.wait({waiting}, timeout=_BEAT_S))[0]:
                    if self._request.transport is None or self._request.transport.is_closing():
                        return None
                    if beat is not None:
                        await beat()
            return waiting.result()
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})


async def _lines(stream: Stream, output: _Output, first: bytes | None) -> None:
    async def beat() -> None:
        await stream.write([HEARTBEAT])

    rest, piece = b"", first
    while piece is not None:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _LINE:
            lines, rest = [*lines, rest], b""
        await stream.write([*output.missed(), *(_line(line) for line in lines)])
        piece = await output.next(beat=beat)
    await stream.write([*([_line(rest)] if rest else []), frame("", "end", b"{}")])


async def _timed_lines(stream: Stream, output: _Output, first: bytes | None) -> None:
    async def beat() -> None:
        await stream.write([HEARTBEAT])

    piece = first
    while piece is not None:
        time, text = piece[:STAMP].decode().rstrip(), piece[STAMP + 1 : -1].decode(errors="replace")
        timed = {"text": text, "time": None if time == "-" else time}
        await stream.write([*output.missed(), frame("", "line", msgspec.json.encode(timed))])
        piece = await output.next(beat=beat)
    await stream.write([frame("", "end", b"{}")])


def _line(line: bytes) -> bytes:
    return frame("", "line", msgspec.json.encode({"text": line.decode(errors="replace")}))


ROUTES = [
    Route(
        "GET", "/v1/apps/{app}/story", app_story, "What happened to an app", query=StoryQuery, answer=StoryAnswer,
        tag="apps", long=True,
    ),
    Route(
        "GET", "/v1/apps/{app}/explain", explain_app, "Why an app has what it has", query=Seen, answer=ExplainAnswer,
        tag="apps", long=True,
    ),
    Route(
        "GET", "/v1/apps/{app}/progress", app_progress, "The course of its work", query=ProgressQuery, answer=Progress,
        tag="apps",
    ),
    Route(
        "GET", "/v1/apps/{app}/speed", app_speed, "Its speed by containers", query=Seen, answer=SpeedCurve | None,
        tag="apps",
    ),
    Route(
        "GET", "/v1/apps/{app}/logs", app_logs, "What a container writes", query=LogsQuery, tag="apps",
        media=(TEXT, CONTENT_TYPE), problems=(409,),
    ),
    Route(
        "GET", "/v1/nodes/{node}/story", node_story, "What happened to a node", query=StoryQuery, answer=StoryAnswer,
        tag="nodes", long=True,
    ),
]  # fmt: skip
