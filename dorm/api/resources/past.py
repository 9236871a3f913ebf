"""What apps of any age did and left, from the log and its archives.

Apps of the past as rows, filtered and sorted, and several of them side by side; what an app has saved, and where it would
resume; what users, apps and nodes were given, used and lost over a span of time.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from dorm.api.errors import Forbidden, Invalid, Malformed, Unavailable
from dorm.api.handlers import At, Limit, MinSeq, Page, paged, parse_moment, requester, settled
from dorm.api.past_folds import Span
from dorm.api.responses import Answer, answer
from dorm.api.routes import Call, Parameters, Route
from dorm.client.checkpoints import Checkpoints, checkpoints_of
from dorm.client.errors import NotFound
from dorm.client.files import Files
from dorm.client.finding import find_app
from dorm.client.live_reports import last_uses
from events.errors import code_of
from events.quantities import duration
from replay.comparison import FieldOfSeveral, Side, differing, sides
from replay.moments import AtSequence
from replay.past import CONDITION, ORDER, PastApp, in_order, parse_condition, select
from replay.usage import Usage, usage
from replay.usage_ledger import GROUPS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.api.responses import Answer
    from dorm.core.state import State
    from replay.moments import AtTime, BeforeEnd
    from replay.usage import Uses


# --- apps -------------------------------------------------------------------------------------------------------------

_SPARE_S = 2.0
"""Seconds that remain of a request's time for saying that it was too short."""
_MOST_COMPARED = 12
_CURSOR = r"^([0-9]{1,15})?-[0-9]{1,15}:\S{1,512}$"
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Condition = Annotated[
    str, msgspec.Meta(min_length=1, max_length=300, extra_json_schema={"pattern": f"^(?:{CONDITION})$"})
]


class HistoryQuery(Parameters, frozen=True, kw_only=True):
    """Which apps.  A filter that is repeated matches any of its values, and `metric` all of them."""

    name: Annotated[
        tuple[Name, ...],
        msgspec.Meta(description="Names, ids, names of sweeps, or patterns such as `lr-*`.", max_length=64),
    ] = ()
    user: Annotated[tuple[Name, ...], msgspec.Meta(description="Only these users'.", max_length=64)] = ()
    state: Annotated[
        tuple[Literal["completed", "failed", "cancelled", "live"], ...],
        msgspec.Meta(max_length=4, description="Default: all that ended."),
    ] = ()
    since: (
        Annotated[At, msgspec.Meta(description="Not what ended before this moment; default: the log's start.")] | None
    ) = None
    until: Annotated[At, msgspec.Meta(description="As it was then; default: now.")] | None = None
    metric: Annotated[
        tuple[Condition, ...],
        msgspec.Meta(max_length=16, description="Such as `loss<0.1`, `core_hours>=2` or, of a sweep, `lr=0.1`."),
    ] = ()
    q: (
        Annotated[
            str,
            msgspec.Meta(
                min_length=1,
                max_length=200,
                description="Only apps with this text in their name, id, user, sweep, reason or a label (`team=vision`), "
                "in any case.",
            ),
        ]
        | None
    ) = None
    sort: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=64,
            extra_json_schema={"pattern": ORDER},
            description="`ended`, `submitted`, `name`, `user`, `state`, a metric or a parameter; `-` for the greatest first.",
        ),
    ] = "-ended"
    after: Annotated[str, msgspec.Meta(pattern=_CURSOR, max_length=600, description="`next` of a page.")] | None = None
    limit: Limit = 100
    min_seq: MinSeq | None = None


class ComparisonQuery(Parameters, frozen=True, kw_only=True):
    """Which apps are compared."""

    app: Annotated[
        tuple[Name, ...], msgspec.Meta(min_length=2, max_length=_MOST_COMPARED, description="An app, by name or id.")
    ]
    at: At | None = None
    min_seq: MinSeq | None = None


class ComparisonDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Apps side by side.  Times are UTC nanoseconds, as `dorm history --compare -o json` has them."""

    position: str
    apps: list[Side]
    spec: list[FieldOfSeveral]
    """The fields that are not the same in all specs."""


async def list_history(call: Call[HistoryQuery, None]) -> Answer:
    """How each app ended and what it cost, including apps that the cluster has forgotten. All pages show the moment
    of the first. Plain users see their own apps. Times are UTC nanoseconds, as in `dorm history -o json`.
    As far back as the cluster keeps ended apps, the answer takes no fold of the log."""
    query, services = call.query, call.services
    users, conditions = _users(call), [parse_condition(condition) for condition in query.metric]
    in_order([], query.sort)
    await settled(call)
    span, last = await _span(call)
    rows = services.pasts.kept(span)
    if rows is None and (begin_at := _up_to_now(query)) is not None:
        span, rows = await services.pasts.of_present(span, begin_at, services.follower)
    if rows is None:
        async with _turn(call):
            rows = await services.pasts.of(span)
    chosen = await asyncio.to_thread(
        lambda: in_order(
            select(rows, users=users, states=query.state, conditions=conditions, text=query.q or ""), query.sort
        )
    )
    if last is not None:
        place = next((place for place, row in enumerate(chosen) if row.id == last), len(chosen))
        chosen = chosen[place + 1 :]
    begin = "" if span.since is None else str(span.since)
    shown, after = paged(chosen, lambda row: f"{begin}-{span.until}:{row.id}", query.limit)
    page = Page(items=shown, next=after, previous=None, position=str(span.until))
    return await asyncio.to_thread(answer, page, page.position, pack=call.packs)


def _up_to_now(query: HistoryQuery) -> AtTime | BeforeEnd | None:
    """Return when a span begins that is asked for up to now; None for another span, and for further pages of one."""
    if query.after is not None or query.until is not None or query.since is None:
        return None
    moment = parse_moment(query.since)
    return None if isinstance(moment, AtSequence) else moment


async def _span(call: Call[HistoryQuery, None]) -> tuple[Span, str | None]:
    """Return what is to be folded, as sequences, and the id after which the page starts.  Raises Malformed, MomentError."""
    query, services = call.query, call.services
    if query.after is not None:
        match = re.fullmatch(r"([0-9]*)-([0-9]+):(\S+)", query.after)
        if match is None or int(match[2]) > services.follower.seq:
            raise Malformed("`after`: pass `next` of a page", code="api.parameter.malformed")
        return Span(int(match[1]) if match[1] else None, int(match[2]), query.name), match[3]
    moments = services.moments
    since = await moments.seq_of(parse_moment(query.since)) if query.since is not None else None
    until = await moments.seq_of(parse_moment(query.until)) if query.until is not None else services.follower.seq
    return Span(since, until, query.name), None


def _users(call: Call[HistoryQuery, None]) -> tuple[str, ...]:
    """Return whose apps are asked for.  Raises Forbidden if a user who reads only their own apps asks for others'."""
    own = call.services.door.own_only(call.user)
    if own is None:
        return call.query.user
    if any(name != own for name in call.query.user):
        text = f"{call.user} reads the history of {own} only; a reader reads all"
        raise Forbidden(text, code="identity.role.too_low")
    return (own,)


async def compare_apps(call: Call[ComparisonQuery, None]) -> Answer:
    """What they cost and reached, what differs in their specs, and their curves."""
    query, services = call.query, call.services
    await settled(call)
    moment = parse_moment(query.at) if query.at is not None else None
    seq = services.follower.seq if moment is None else await services.moments.seq_of(moment)

    def ids(state: State) -> tuple[str, ...]:
        return tuple(_id_of(state, name, call.user) for name in query.app)

    names = await services.follower.look(ids)
    async with _turn(call):
        compared = await sides(services.follower.log, names, AtSequence(seq))
    made = ComparisonDocument(
        position=str(seq), apps=[side for side, _ in compared], spec=differing([spec for _, spec in compared])
    )
    return await asyncio.to_thread(answer, made, made.position, pack=call.packs)


def _id_of(state: State, name: str, user: str) -> str:
    """Return the id of the user's app of this name; the name itself if the cluster has forgotten it."""
    try:
        return find_app(state, name, user).id
    except NotFound as error:
        if error.code == "app.ambiguous":
            raise
        return name


@contextlib.asynccontextmanager
async def _turn(call: Call[Any, Any]) -> AsyncIterator[None]:
    """Have a turn for a long fold, bounded in time; closing the request ends the fold.  Raises Unavailable."""
    seconds = call.services.options.limits.long_answer_s - _SPARE_S
    async with call.services.forks.turn():
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise Unavailable(
                f"reading that much of the log takes longer than {seconds:.0f} s; name a later `since`, or use "
                "`dorm history`, which has no such bound",
                code="api.too_slow",
            ) from None


ROUTES = [
    Route(
        "GET", "/v1/history", list_history, "Apps of the past", query=HistoryQuery, answer=Page[PastApp], tag="moments",
        long=True,
    ),
    Route(
        "GET", "/v1/history/compare", compare_apps, "Apps side by side", query=ComparisonQuery,
        answer=ComparisonDocument, tag="moments", long=True,
    ),
]  # fmt: skip


# --- what an app has saved --------------------------------------------------------------------------------------------


class CheckpointsQuery(Parameters, frozen=True, kw_only=True):
    """Parameters of an app's checkpoints."""

    min_seq: MinSeq | None = None


async def app_checkpoints(call: Call[CheckpointsQuery, None]) -> Answer:
    """Path, step, size and age of each, which generation wrote it, and from which a restart would resume.  A node's agent
    lists the folder.  Times are UTC nanoseconds, as `dorm checkpoints -o json` has them."""
    if not call.services.door.reads_files(call.user):
        text = f"{call.user} is a reader, who asks for no files of apps; a user of their tenant or an operator may"
        raise Forbidden(text, code="identity.role.too_low")
    await settled(call)
    async with requester(call) as client:
        seq = call.services.follower.seq
        checkpoints = await checkpoints_of(client, Files(client), call.path("app"))
    return answer(checkpoints, seq, pack=call.packs)


CHECKPOINT_ROUTES = [
    Route(
        "GET", "/v1/apps/{app}/checkpoints", app_checkpoints, "What an app has saved", query=CheckpointsQuery,
        answer=Checkpoints, tag="apps", long=True,
    ),
]  # fmt: skip


# --- usage ------------------------------------------------------------------------------------------------------------

_MOST = 100
Names = Annotated[tuple[str, ...], msgspec.Meta(max_length=_MOST)]


class Spanned(Parameters, frozen=True, kw_only=True, rename={"begin": "from"}):
    """Which usage."""

    begin: Annotated[At, msgspec.Meta(description="The span's begin; default: the log's first record.")] | None = None
    to: Annotated[At, msgspec.Meta(description="The span's end; default: now.")] | None = None
    by: Annotated[
        str,
        msgspec.Meta(
            max_length=64,
            description="What to sum up by: some of user, app and node with commas between, or resource for all.",
        ),
    ] = "user"
    every: (
        Annotated[str, msgspec.Meta(max_length=16, description="Sums for each period of this length, such as 1h.")]
        | None
    ) = None
    user: Names = ()
    """Only these users."""
    app: Names = ()
    """Only these apps, by name or id."""
    node: Names = ()
    """Only these nodes."""
    min_seq: MinSeq | None = None


async def get_usage(call: Call[Spanned, None]) -> Answer:
    """What was given, used, wasted and lost over a span, as `dorm usage` counts it.  Users who read only their own apps get
    their own usage.  Bounded in time; closing the request ends the computation."""
    query, services = call.query, call.services
    users = _users_of_usage(call)
    by = _groups(query.by)
    every_s = _every_s(query.every)
    await settled(call)
    begin, end = (None if text is None else parse_moment(text) for text in (query.begin, query.to))
    archived = bool(services.options.archive)

    async def uses(state: State) -> Uses:
        return await last_uses(services.connection.bus, services.cluster, state)

    seconds = services.options.limits.long_answer_s - _SPARE_S
    async with services.forks.turn():
        try:
            async with asyncio.timeout(seconds):
                used = await usage(
                    services.follower.log, begin, end, by=by, users=users, apps=query.app, nodes=query.node, every_s=every_s,
                    now=0 if archived else services.clock(), uses=None if archived else uses,
                    strict=users == query.user,
                )  # fmt: skip
        except TimeoutError:
            raise Unavailable(
                f"counting takes longer than {seconds:.0f} s; choose a shorter span, or run `dorm usage`, which has no "
                "such bound",
                code="api.too_slow",
            ) from None
    return await asyncio.to_thread(answer, used, used.last, pack=call.packs)


def _users_of_usage(call: Call[Spanned, None]) -> tuple[str, ...]:
    """Return whose usage is asked for.  Raises Forbidden if a user who reads only their own apps asks for others'."""
    own = call.services.door.own_only(call.user)
    if own is None:
        return call.query.user
    if any(name != own for name in call.query.user):
        text = f"{call.user} reads the usage of {own} only; a reader reads all"
        raise Forbidden(text, code="identity.role.too_low")
    return (own,)


def _groups(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if any(name not in (*GROUPS, "resource") for name in names):
        raise Invalid(
            "`by`: write some of user, app and node with commas between, or resource", code="usage.by.unknown"
        )
    return tuple(name for name in names if name != "resource")


def _every_s(text: str | None) -> float:
    try:
        seconds = 0.0 if text is None else duration(text)
    except ValueError as error:
        raise Invalid(f"`every`: {error}", code=code_of(error)) from None
    if text is not None and seconds < 1.0:
        raise Invalid("`every`: a period is at least 1s long", code="usage.every.too_short")
    return seconds


USAGE_ROUTES = [
    Route("GET", "/v1/usage", get_usage, "Usage over a span of time", query=Spanned, answer=Usage, tag="moments", long=True),
]  # fmt: skip
