"""Sweeps: many apps from one spec, listed, compared, submitted and cancelled together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from dorm.api.handlers import Limit, Page, Seen, Stored, paged, requester, stored
from dorm.api.resources.apps import Why, with_newest
from dorm.api.routes import Call, Link, Parameters, Route
from dorm.client import sweeps as cancelling
from dorm.client import sweeps as submitting
from dorm.client.sweeps import find_sweep
from dorm.core.query.sweeps import SweepRow, SweptRow, best_first, sweep_row, sweeps, swept_rows
from events.cloudevents import rfc3339
from events.spec.sweeps import MOST, expanded

if TYPE_CHECKING:
    from dorm.api.answers import Answer
    from dorm.core.app import App
    from dorm.core.progress import Newest
    from dorm.core.state import State

_MOST = 10_000
"""Most apps of a sweep that is submitted over HTTP."""


class SweepItem(SweepRow, frozen=True, kw_only=True):
    """One sweep in a list."""

    tenant: str
    position: str
    """Of its first app's submission: sweeps are listed in this order."""
    submitted_at: str
    ended: bool
    """Whether all apps that were submitted have ended."""


class SweepDetails(SweepItem, frozen=True, kw_only=True):
    """A sweep with its apps side by side."""

    seen: str
    """The position of the log that this shows."""
    parameters: list[str]
    """Names of parameters that its apps have, in the order of the spec."""
    apps: list[SweptRow]
    next: str | None
    """The value of `after` for the next apps; null if there are no more."""


class SweepsQuery(Seen, frozen=True, kw_only=True):
    """Parameters of the list of sweeps."""

    after: Annotated[
        int, msgspec.Meta(ge=0, le=2**53, description="Only sweeps begun after this sequence: `next` of a page.")
    ] = 0
    limit: Limit = 100
    ended: Annotated[bool, msgspec.Meta(description="Include sweeps of which all apps have ended.")] = False
    user: Annotated[str, msgspec.Meta(max_length=512, description="Only this user's sweeps.")] | None = None


class SweepQuery(Seen, frozen=True, kw_only=True):
    """Parameters of one sweep."""

    by: (
        Annotated[
            Literal["loss", "step", "samples_per_s", "container_s"],
            msgspec.Meta(description="The apps by this metric, the best first; default: by their numbers."),
        ]
        | None
    ) = None
    after: (
        Annotated[int, msgspec.Meta(ge=0, le=2**53, description="Only apps that come after this one: `next`.")] | None
    ) = None
    limit: Limit = 1000


class SweepSubmission(Parameters, frozen=True, kw_only=True):
    """Parameters of a submission."""

    most: Annotated[int, msgspec.Meta(ge=1, le=_MOST, description="Refuse a sweep of more apps.")] = MOST


class SubmittedSweep(Stored, frozen=True, kw_only=True):
    """All apps of a sweep are accepted."""

    name: str
    count: int
    new: int
    """Apps that were submitted now."""
    before: int
    """Apps that were there already."""


class CancelledSweep(Stored, frozen=True, kw_only=True):
    """Requests are stored; what follows from them is on the log."""

    name: str
    apps: int
    """How many had not ended."""


def _fields(apps: list[App], now: int) -> dict[str, Any]:
    row = sweep_row(apps, now)
    return {
        **{name: getattr(row, name) for name in SweepRow.__struct_fields__},
        "tenant": apps[0].tenant,
        "position": str(min(app.seq for app in apps)),
        "submitted_at": rfc3339(min(app.submitted_at for app in apps)),
        "ended": all(app.ended for app in apps),
    }


async def list_sweeps(call: Call[SweepsQuery, None]) -> Answer:
    """In order of submission; of several sweeps of one name and user the latest.  Plain users get their own."""
    query, own = call.query, call.services.door.own_only(call.user)

    def build(state: State, newest: Newest) -> Page[SweepItem]:
        all_items = [SweepItem(**_fields(apps, state.time)) for apps in sweeps(state).values()]
        wanted = sorted(
            (
                item
                for item in all_items
                if int(item.position) > query.after
                and (query.ended or not item.ended)
                and query.user in (None, item.user, item.tenant)
                and own in (None, item.tenant)
            ),
            key=lambda item: (int(item.position), item.name),
        )
        items, after = paged(wanted, lambda item: item.position, query.limit)
        return Page(items=items, next=after, previous=None, position=str(state.seq))

    return await with_newest(call, build)


async def get_sweep(call: Call[SweepQuery, None]) -> Answer:
    """Its apps side by side, with parameters, state and metrics; apps that have ended are there as long as the cluster
    keeps them.  Of several users' sweeps of one name it is your own; `TENANT//NAME` names another's."""
    query = call.query

    def build(state: State, newest: Newest) -> SweepDetails:
        apps = find_sweep(state, call.path("sweep"), call.user)
        rows = swept_rows(apps, state.time, newest)
        names = list(dict.fromkeys(name for row in rows for name in row.parameters))
        if query.by is not None:
            rows = best_first(rows, query.by)
        if query.after is not None:
            place = next((place for place, row in enumerate(rows) if row.index == query.after), len(rows))
            rows = rows[place + 1 :]
        shown, after = paged(rows, lambda row: str(row.index), query.limit)
        return SweepDetails(**_fields(apps, state.time), seen=str(state.seq), parameters=names, apps=shown, next=after)

    return await with_newest(call, build)


async def submit_sweep(call: Call[SweepSubmission, dict[str, Any]]) -> Answer:
    """A spec with `array` or `sweep`, as JSON or YAML.  It waits for the master's answers; a refusal is a problem with its
    code.  The same document is the same sweep, so after an interruption the same request submits what is missing."""
    document = call.body
    sweep = await asyncio.to_thread(expanded, document, most=call.query.most)
    async with requester(call) as client:
        outcome = await submitting.submit(client, sweep)
        client.stored = (await client.state()).seq
        return stored(
            SubmittedSweep(
                position=str(client.stored),
                name=sweep.name,
                count=len(sweep.specs),
                new=outcome.new,
                before=outcome.before,
            ),
            client,
        )


async def cancel_sweep(call: Call[Parameters, Why]) -> Answer:
    """All apps that have not ended, waiting apps first.  A request that still submits the sweep ends with an error."""
    name = call.path("sweep")
    async with requester(call) as client:
        cancelled = await cancelling.cancel(client, name, call.body.reason)
        client.stored = cancelled.position
        return stored(CancelledSweep(position=str(cancelled.position), name=name, apps=len(cancelled.apps)), client)


_NAMED = (Link("get_sweep", "sweep", "$response.body#/name"), Link("cancel_sweep", "sweep", "$response.body#/name"))
ROUTES = [
    Route(
        "GET", "/v1/sweeps", list_sweeps, "List sweeps", query=SweepsQuery, answer=Page[SweepItem], tag="sweeps",
        links=(Link("get_sweep", "sweep", "$response.body#/items/0/name"),),
    ),
    Route(
        "POST", "/v1/sweeps", submit_sweep, "Submit a sweep", query=SweepSubmission, body=dict[str, Any],
        answer=SubmittedSweep, status=202, yaml=True, spec="SweepSpec", tag="sweeps", problems=(409, 504), long=True,
        links=_NAMED,
    ),
    Route(
        "GET", "/v1/sweeps/{sweep}", get_sweep, "Look at a sweep", query=SweepQuery, answer=SweepDetails, tag="sweeps",
        links=(Link("get_app", "app", "$response.body#/apps/0/id"),),
    ),
    Route(
        "POST", "/v1/sweeps/{sweep}/cancel", cancel_sweep, "Cancel a sweep", body=Why, answer=CancelledSweep, status=202,
        tag="sweeps", problems=(409, 504), links=_NAMED[:1],
    ),
]  # fmt: skip
