"""What the next decision would be, as things are or if something happened first; and when waiting apps start."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.handlers import Page, Seen, seq_of
from dorm.api.lives import Subject
from dorm.api.routes import Call, Route
from dorm.core.query.planning.assumed import Assumed, NewNodes
from dorm.core.query.planning.planned import Figures, PlannedApp, Round
from dorm.core.query.planning.plans import MOST_ROUNDS, plan
from dorm.local.spec_files import parse_spec
from events.cloudevents import rfc3339
from events.kinds import AppUpdated
from events.quantities import resource
from events.spec import check_spec
from replay.simulator.forks.starting import Start, forecast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.api.lives import Life
    from dorm.core.state import State

_MOST = 64
"""Most apps or nodes of one kind in an assumption."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Names = Name | Annotated[list[Name], msgspec.Meta(max_length=_MOST)]
Text = Annotated[str, msgspec.Meta(max_length=1 << 18)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Quantity = Annotated[str, msgspec.Meta(max_length=80)]


class PlannedUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another weight or other bounds."""

    app: Name
    weight: Annotated[float, msgspec.Meta(ge=0.001, le=1000)] | None = None
    n_min: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    n_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None


class PlannedNodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that join, of one shape."""

    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    capacity: dict[Name, Amount | Quantity] = {}
    """In base units, or as text with a unit (`"8"` cores, `"64GiB"`); with `like` only the differences."""
    labels: dict[Name, str] = {}
    like: Annotated[str, msgspec.Meta(max_length=512)] = ""
    """A node whose capacity and labels they have."""

    def amounts(self) -> dict[str, int]:
        """Return the capacity in base units.  Raises QuantityError."""
        return {
            name: resource(name, given) if isinstance(given, str) else given for name, given in self.capacity.items()
        }


class Supposed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is supposed to happen first; nothing, if empty."""

    submit: dict[str, Any] | Annotated[list[dict[str, Any]], msgspec.Meta(max_length=_MOST)] | Text | None = None
    """A spec, several, or one as text in YAML."""
    cancel: Names | None = None
    update: PlannedUpdate | None = None
    drain: Names | None = None
    undrain: Names | None = None
    """Nodes whose drain ends."""
    without: Names | None = None
    """Nodes that are gone."""
    nodes: Annotated[list[PlannedNodes], msgspec.Meta(max_length=_MOST)] = []
    """Nodes that join."""
    policy: dict[str, Any] | None = None
    """Parameters of the policy; `policy` names another one."""

    def assumed(self) -> Assumed:
        """Raises SpecError, QuantityError."""
        one = parse_spec(self.submit) if isinstance(self.submit, str) else self.submit
        specs = self.submit if isinstance(self.submit, list) else [one] if one is not None else []
        updates: tuple[AppUpdated, ...] = ()
        if self.update is not None:
            change = self.update
            updates = (AppUpdated(app=change.app, weight=change.weight, n_min=change.n_min, n_max=change.n_max),)
        return Assumed(
            settings=self.policy or {},
            joins=tuple(NewNodes(one.count, one.amounts(), one.labels, one.like) for one in self.nodes),
            removed=_names(self.without),
            drained=_names(self.drain),
            undrained=_names(self.undrain),
            cancelled=_names(self.cancel),
            updated=updates,
            specs=tuple(check_spec(spec, every=True) for spec in specs),
        )


class Assumptions(Supposed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens before the decision; nothing, if empty."""

    rounds: Annotated[int, msgspec.Meta(ge=1, le=min(20, MOST_ROUNDS))] = 1
    """How many decisions, each after the adjustments of the one before."""


class PlannedWait(msgspec.Struct, frozen=True):
    """An app that would have nothing."""

    app: str
    name: str
    code: str
    text: str


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The next decision."""

    position: str
    """The record that it starts from."""
    at: str
    assumed: list[str]
    """In words."""
    changes: list[PlannedApp]
    """Apps that would have other containers than now."""
    waiting: list[PlannedWait]
    before: Figures
    after: Figures
    rounds: list[Round]


class Forecast(msgspec.Struct, frozen=True):
    """When an app that waits will start."""

    app: str
    name: str
    position: str
    start: Start | None
    """Null if nothing can be said: the policy fails."""


class ForecastsQuery(Seen, frozen=True, kw_only=True):
    """Parameters of forecasts: each takes some seconds of computing, so a page has few."""

    after: Annotated[int, msgspec.Meta(ge=0, le=2**53, description="Only apps submitted after this sequence.")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=5, description="Most items of the page.")] = 3
    app: Annotated[str, msgspec.Meta(max_length=512, description="Only this app, by id or name.")] | None = None


def _names(given: str | list[str] | None) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


async def plan_next(call: Call[Seen, Assumptions]) -> Answer:
    """Computed by the policy as the master would; nothing happens."""
    services, body = call.services, call.body
    seq = await seq_of(call, call.query.at)
    if seq is None:
        state = await services.moments.present()
        now = max(state.time, services.clock())
    else:
        state = await services.moments.state(seq)
        now = state.time
    async with services.heavy.turn():
        return await services.heavy.run(partial(_planned, state, now, body, call.packs))


def _planned(state: State, now: int, body: Assumptions, pack: bool) -> Answer:
    found = plan(state, now, body.assumed(), rounds=body.rounds)
    made = PlanDocument(
        position=str(found.seq),
        at=rfc3339(found.at),
        assumed=found.assumed,
        changes=[app for app in found.apps if app.kind or app.end],
        waiting=[
            PlannedWait(app.id, app.name, app.reason.code if app.reason else "", app.reason.text if app.reason else "")
            for app in found.apps
            if not app.after and not app.end
        ],
        before=found.before,
        after=found.after,
        rounds=found.rounds,
    )
    return answer(made, found.seq, pack=pack)


async def list_forecasts(call: Call[ForecastsQuery, None]) -> Answer:
    """For apps that wait, by short simulations: a range if it is not known how much others still have to do."""
    services, query = call.services, call.query
    seq = await seq_of(call, query.at)
    upto = services.follower.seq if seq is None else seq

    def waiting(state: State) -> list[tuple[str, str, int]]:
        return [
            (app.id, app.name, app.seq)
            for app in state.live_apps()
            if app.current is None and app.seq > query.after and query.app in (None, app.id, app.name)
        ][: query.limit + 1]

    if seq is None:
        found = await services.follower.look(waiting)
    else:
        found = await services.moments.look(seq, waiting)
    shown = found[: query.limit]
    items: list[Forecast] = []
    if shown:
        now = services.clock() if seq is None else 0
        items = await services.lives.ask(Subject(shown[0][0]), upto, partial(_forecasts, shown, now))
    after = str(shown[-1][2]) if len(found) > query.limit else None
    return answer(Page(items=items, next=after, previous=None, position=str(upto)), upto, pack=call.packs)


def _forecasts(apps: Sequence[tuple[str, str, int]], now: int, life: Life) -> list[Forecast]:
    at = max(life.state.time, now)
    return [Forecast(app, name, str(seq), forecast(life.outlook, life.state, app, at)) for app, name, seq in apps]


ROUTES = [
    Route(
        "POST", "/v1/plan", plan_next, "Plan the next decision", query=Seen, body=Assumptions, answer=PlanDocument,
        tag="policy", long=True,
    ),
    Route(
        "GET", "/v1/forecasts", list_forecasts, "When waiting apps start", query=ForecastsQuery, answer=Page[Forecast],
        tag="policy", long=True,
    ),
]  # fmt: skip
