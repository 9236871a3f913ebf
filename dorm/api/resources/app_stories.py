"""Why an app has what it has and what happened to it, and its curves."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from dorm.api.errors import Missing
from dorm.api.handlers import Seen, answer_from_state, seq_of
from dorm.api.lives import Subject
from dorm.api.responses import Answer, answer
from dorm.api.routes import Call, Route
from dorm.client.finding import find_app
from dorm.core.asking import problem_of
from events.cloudevents import rfc3339
from replay.simulator.forks.starting import Start, forecast
from replay.story.chapters import Chapter
from replay.story.explanation import Explanation, explain
from replay.story.known_speed import SpeedCurve, speed_curve

if TYPE_CHECKING:
    from dorm.api.lives import Life
    from dorm.core.state import State

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
        "GET", "/v1/nodes/{node}/story", node_story, "What happened to a node", query=StoryQuery, answer=StoryAnswer,
        tag="nodes", long=True,
    ),
]  # fmt: skip
