"""Apps: list, look at, submit, change, cancel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from dorm.api.handlers import (
    KEY,
    KEY_PATTERN,
    Limit,
    Page,
    Seen,
    Stored,
    answer_from_state,
    idempotency_key,
    paged,
    requester,
    stored,
)
from dorm.api.routes import Call, Header, Link, Parameters, Route
from dorm.client import operating, steering
from dorm.client.errors import NoAnswer
from dorm.client.finding import find_app
from dorm.core.admission import app_id
from dorm.core.gates import shown_reason
from dorm.core.progress import shown
from dorm.core.query.views import app_row, describe
from events.cloudevents import rfc3339
from events.limits import LONGEST_NAME
from events.spec import check_spec
from events.spec.groups import Setting
from events.spec.variables import findings
from replay.moments import AtSequence
from replay.travel.reported import reported_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.api.answers import Answer
    from dorm.core.app import App
    from dorm.core.progress import Newest
    from dorm.core.state import State

_ANSWER_S = 10.0
"""Seconds for which a submission waits for the master's answer."""


class AppItem(msgspec.Struct, frozen=True, kw_only=True):
    """One app in a list."""

    id: str
    name: str
    user: str
    phase: str
    position: str
    """Of its submission: apps are listed in this order."""
    containers: int
    nodes: int
    """On how many nodes they are."""
    n_min: int
    n_max: int
    weight: float
    generation: int
    step: int
    loss: float | None
    loss_is: str
    """`nan`, `inf` or `-inf` if the loss is not a finite number."""
    progressed_at: str | None
    """When it reported progress or a checkpoint last in its present generation."""
    samples_per_s: float | None
    adjustments: int
    failures: int
    submitted_at: str
    ended_at: str | None
    note: str
    """Why it waits or has less than it could use, or how it ended."""
    code: str
    """The code of that reason."""


class SweepOf(msgspec.Struct, frozen=True):
    """Which app of which sweep one is."""

    name: str
    tenant: str
    index: int
    """From 0."""
    count: int
    parameters: dict[str, Setting]


class AppDetails(AppItem, frozen=True, kw_only=True):
    """Everything about one app."""

    demand: dict[str, str]
    """Of one container."""
    require: Any
    placement: str
    gang: int
    elastic: str
    """`live` for an app that is resized while it trains."""
    membership: int | None
    """Of a live app: counts its members' changes within the generation."""
    epoch: int | None
    checkpoint: int | None
    """The step of the last checkpoint."""
    doubt: dict[str, Any] | None
    """Why that checkpoint may be incomplete: `files` that changed after it was reported, `text` and `advice`; null if
    nothing says so."""
    skipped_lines: dict[str, Any] | None
    """What of its progress file could not be used: how many lines, with the first as an example."""
    lost_steps: int
    sweep: SweepOf | None
    """Null for an app of no sweep."""
    hold: dict[str, Any] | None
    """Who holds it (`by`), since when (`at`), why, and whether that is an operator; null if it is not held."""
    runtime: dict[str, float] | None
    """How long it has run (`ran_s`) and may run (`max_s`), in seconds; null without a limit."""
    held: str
    """Why it is held at a number of containers for a while."""
    asked: str
    """What it asked for itself."""
    retries_used: dict[str, str]
    adjust_s: float | None
    """Seconds of its work that one adjustment costs, as measured."""
    served_s: float
    """Container-seconds that it had."""
    steps: int | None
    """How many it has to do."""
    containers_now: list[dict[str, Any]]
    adjustments_done: list[dict[str, Any]]
    """The latest ones, with the length of each phase."""
    spec: dict[str, Any]


class AppsQuery(Seen, frozen=True, kw_only=True):
    """Parameters of the list of apps."""

    after: Annotated[
        int, msgspec.Meta(ge=0, le=2**53, description="Only apps submitted after this sequence: `next` of a page.")
    ] = 0
    limit: Limit = 100
    ended: Annotated[bool, msgspec.Meta(description="Include apps that ended, as long as the cluster keeps them.")] = (
        False
    )
    phase: Annotated[str, msgspec.Meta(max_length=32, description="Only apps in this phase.")] | None = None
    user: Annotated[str, msgspec.Meta(max_length=512, description="Only this user's apps.")] | None = None
    q: (
        Annotated[str, msgspec.Meta(max_length=512, description="Only apps whose name, id or user has this text.")]
        | None
    ) = None


class Submitted(Stored, frozen=True, kw_only=True):
    """An app is submitted."""

    id: str
    name: str
    user: str
    idempotency_key: str
    """The id of the submission; a repeat with it is the same app."""
    answered: bool
    """Whether a master has accepted it; if not, one will answer once it runs."""
    notes: tuple[str, ...] = ()
    """What its author should look at, such as `$HOME` in a command, which no shell reads."""


class Update(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of an app to change; omitted fields stay."""

    weight: Annotated[float, msgspec.Meta(ge=0.001, le=1000)] | None = None
    n_min: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    n_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None


class Updated(Stored, frozen=True, kw_only=True):
    """A change is stored; the next decision takes it up."""

    id: str
    weight: float
    n_min: int
    n_max: int


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why something is asked for; it is written to the log."""

    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""


class Asked(Stored, frozen=True, kw_only=True):
    """A request is stored; its effects are on the log."""

    id: str


def item_of(app: App, now: int, newest: Newest | None = None) -> AppItem:
    return AppItem(**_fields(app, now, newest))


def _fields(app: App, now: int, newest: Newest | None) -> dict[str, Any]:
    row = app_row(app, now, newest)
    return {
        "id": app.id,
        "name": app.name,
        "user": app.user,
        "phase": row.phase,
        "position": str(app.seq),
        "containers": row.containers,
        "nodes": row.nodes,
        "n_min": app.n_min,
        "n_max": app.n_max,
        "weight": app.weight,
        "generation": app.generation,
        "step": row.step,
        "loss": row.loss,
        "loss_is": row.loss_is,
        "progressed_at": rfc3339(at) if (at := shown(app, newest).at) else None,
        "samples_per_s": row.samples_per_s,
        "adjustments": app.adjustments,
        "failures": app.failures,
        "submitted_at": rfc3339(app.submitted_at),
        "ended_at": rfc3339(app.ended_at) if app.ended_at else None,
        "note": row.note,
        "code": shown_reason(app, now)[0],
    }


def details_of(app: App, now: int, newest: Newest | None = None) -> AppDetails:
    described = describe(app, now)
    known = {field: described[field] for field in AppDetails.__struct_fields__ if field in described}
    adjustments = [
        {**adjustment, "decided_at": rfc3339(adjustment["decided_at"])} for adjustment in described["adjustments_done"]
    ]
    if known["hold"] is not None:
        known["hold"] = {**known["hold"], "at": rfc3339(known["hold"]["at"])}
    group = app.spec.group
    sweep = SweepOf(group.name, app.tenant, group.index, group.count, group.parameters) if group is not None else None
    return AppDetails(**{**known, **_fields(app, now, newest), "adjustments_done": adjustments, "sweep": sweep})


async def list_apps(call: Call[AppsQuery, None]) -> Answer:
    """In order of submission."""
    query = call.query

    def wanted(app: App) -> bool:
        return (
            app.seq > query.after
            and (query.ended or not app.ended)
            and (query.phase is None or app.phase == query.phase)
            and (query.user is None or app.user == query.user)
            and (query.q is None or any(query.q in text for text in (app.name, app.id, app.user)))
        )

    def build(state: State, newest: Newest) -> Page[AppItem]:
        chosen = sorted((app for app in state.apps.values() if wanted(app)), key=lambda app: (app.seq, app.id))
        apps, after = paged(chosen, lambda app: str(app.seq), query.limit)
        return Page(
            items=[item_of(app, state.time, newest) for app in apps], next=after, previous=None, position=str(state.seq)
        )

    return await with_newest(call, build)


async def with_newest(call: Call[Any, Any], build: Callable[[State, Newest], Any]) -> Answer:
    """Answer with what apps have reported beside the log: by now, or by the moment that the request names."""
    log, now = call.services.connection.log, call.services.newest

    async def prepare(state: State) -> Callable[[State], Any]:
        newest = await reported_at(log, state, AtSequence(state.seq))
        return lambda state: build(state, newest)

    def present(state: State) -> Any:
        return build(state, now.reports)

    present.__qualname__ = build.__qualname__  # By which the follower knows how long such an answer takes.
    return await answer_from_state(call, present, prepare, turn=now.turn)


async def get_app(call: Call[Seen, None]) -> Answer:
    """By id, or by the name of an app that runs or ran last."""

    def build(state: State, newest: Newest) -> AppDetails:
        return details_of(find_app(state, call.path("app"), call.user), state.time, newest)

    return await with_newest(call, build)


async def submit_app(call: Call[Parameters, dict[str, Any]]) -> Answer:
    """The spec as JSON or YAML.  It waits for the master's answer for a while; a refusal is a problem with its code."""
    key = idempotency_key(call)
    checked = await asyncio.to_thread(check_spec, call.body, every=True)
    async with requester(call) as client:
        id = await client.submission_id(key)
        answered = True
        try:
            await client.submit(checked, id=id, answer_timeout=_ANSWER_S)
        except NoAnswer:
            answered = False
        user = checked.user if checked.user != "anonymous" else client.user
        return stored(
            Submitted(
                position=str(client.stored),
                id=app_id(checked.name, id),
                name=checked.name,
                user=user,
                idempotency_key=id,
                answered=answered,
                notes=tuple(finding.text for finding in findings(checked)),
            ),
            client,
        )


async def update_app(call: Call[Parameters, Update]) -> Answer:
    """Weight and bounds; the next decision takes them up."""
    change = call.body
    async with requester(call) as client:
        app = await client.update(call.path("app"), weight=change.weight, n_min=change.n_min, n_max=change.n_max)
        updated = Updated(position=str(client.stored), id=app.id, weight=app.weight, n_min=app.n_min, n_max=app.n_max)
        return stored(updated, client)


async def cancel_app(call: Call[Parameters, Why]) -> Answer:
    """It checkpoints nothing more and ends; checkpoints and output stay for a while."""
    async with requester(call) as client:
        app = await client.cancel(call.path("app"), call.body.reason)
        return stored(Asked(position=str(client.stored), id=app.id), client)


async def kill_app(call: Call[Parameters, Why]) -> Answer:
    """At once, without a checkpoint and without grace time; containers of an ended app that are still stopping are killed,
    too."""
    async with requester(call) as client:
        app = await client.cancel(call.path("app"), call.body.reason, kill=True)
        return stored(Asked(position=str(client.stored), id=app.id), client)


async def retry_app(call: Call[Parameters, None]) -> Answer:
    """An app that pauses after a failure; its failures still count."""
    async with requester(call) as client:
        app = await operating.retry(client, call.path("app"))
        return stored(Asked(position=str(client.stored), id=app.id), client)


async def hold_app(call: Call[Parameters, Why]) -> Answer:
    """It gets no containers, or gives its containers back with a checkpoint, until it is released."""
    async with requester(call) as client:
        app = await steering.hold(client, call.path("app"), call.body.reason)
        return stored(Asked(position=str(client.stored), id=app.id), client)


async def release_app(call: Call[Parameters, Why]) -> Answer:
    """Releases a held app; only operators end an operator's hold."""
    async with requester(call) as client:
        app = await steering.release(client, call.path("app"), call.body.reason)
        return stored(Asked(position=str(client.stored), id=app.id), client)


_LISTED = "$response.body#/items/0/id"
_APP = (
    Link("get_app", "app", "$response.body#/id"),
    Link("cancel_app", "app", "$response.body#/id"),
    Link("update_app", "app", "$response.body#/id"),
    Link("app_story", "app", "$response.body#/id"),
    Link("explain_app", "app", "$response.body#/id"),
)
ROUTES = [
    Route(
        "GET", "/v1/apps", list_apps, "List apps", query=AppsQuery, answer=Page[AppItem], tag="apps",
        links=tuple(
            Link(operation, "app", _LISTED)
            for operation in ("get_app", "update_app", "app_story", "explain_app", "app_progress", "app_speed")
        ),
    ),
    Route(
        "POST", "/v1/apps", submit_app, "Submit an app", body=dict[str, Any], answer=Submitted, status=202, yaml=True,
        tag="apps", problems=(409, 504), links=_APP,
        headers=(
            Header(KEY, "The id of the submission: a repeat is the same app.", KEY_PATTERN, LONGEST_NAME),
        ),
    ),
    Route("GET", "/v1/apps/{app}", get_app, "Look at an app", query=Seen, answer=AppDetails, tag="apps"),
    Route(
        "PATCH", "/v1/apps/{app}", update_app, "Change an app", body=Update, answer=Updated, status=202, tag="apps",
        problems=(409, 504), links=_APP[:1],
    ),
    Route(
        "POST", "/v1/apps/{app}/cancel", cancel_app, "Cancel an app", body=Why, answer=Asked, status=202, tag="apps",
        problems=(409, 504), links=_APP[:1],
    ),
    Route(
        "POST", "/v1/apps/{app}/kill", kill_app, "Kill an app", body=Why, answer=Asked, status=202, tag="apps",
        problems=(409, 504), links=_APP[:1],
    ),
    Route(
        "POST", "/v1/apps/{app}/hold", hold_app, "Hold an app", body=Why, answer=Asked, status=202, tag="apps",
        problems=(409, 504), links=_APP[:1],
    ),
    Route(
        "POST", "/v1/apps/{app}/release", release_app, "Let a held app go on", body=Why, answer=Asked, status=202, tag="apps",
        problems=(409, 504), links=_APP[:1],
    ),
    Route(
        "POST", "/v1/apps/{app}/retry", retry_app, "Retry an app now", answer=Asked, status=202, tag="apps",
        problems=(409, 504), links=_APP[:1],
    ),
]  # fmt: skip
