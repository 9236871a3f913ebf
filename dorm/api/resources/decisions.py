"""The master's decisions, each with everything it is based on."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.errors import Missing
from dorm.api.handlers import MinSeq, Page
from dorm.api.resources.events import At, EventsQuery, found_page
from dorm.api.routes import Call, Link, Parameters, Route
from dorm.api.threads import apart_if_large
from events.cloudevents import plain, rfc3339
from events.kinds import Resized, Round
from events.positions import parse
from replay.gist import gist
from replay.page.view import decision_in


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
    asked = EventsQuery(
        after=query.after, before=query.before, limit=query.limit, kind=("Resized",), min_seq=query.min_seq
    )
    page = await found_page(Call(call.services, call.request, asked, None, call.user))
    size = sum(len(memoryview(item)) for item in page.items)
    return await apart_if_large(size, partial(_as_decisions, page, call.packs))


def _as_decisions(page: Page[msgspec.Raw], pack: bool) -> Answer:
    events = [msgspec.json.decode(item, type=dict[str, Any]) for item in page.items]
    items = [_item(one["position"], one["at"], one["text"], one["body"]) for one in events]
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
    found = decision_in(record) if record is not None else None
    if found is None or (wanted.index is not None and found.position != wanted):
        raise Missing(f"there is no decision at {wanted}; /v1/decisions lists them", code="decision.not_found")
    assert isinstance(found.event, Resized)
    assert isinstance(found.round, Round)
    body = plain(found.event)
    fields = _fields(str(found.position), rfc3339(found.time), gist(found.event), body)
    made = Decision(**fields, epoch=found.round.epoch, basis=found.round.basis, body=body)
    return await asyncio.to_thread(answer, made, str(found.position), pack=call.packs)


ROUTES = [
    Route(
        "GET", "/v1/decisions", list_decisions, "List decisions", query=DecisionsQuery, answer=Page[DecisionItem], tag="log",
        links=(Link("get_decision", "position", "$response.body#/items/0/position"),),
    ),
    Route("GET", "/v1/decisions/{position}", get_decision, "Look at a decision", answer=Decision, tag="log"),
]  # fmt: skip
