"""What the cluster decides by, and what it would decide.

Settings: those in force, those to choose from, trying others, and changing them; and whether anything is decided at all.
Plans: what the next decision would be, as things are or if something happened first, and when waiting apps start.
What-if: the log continued from a moment in the simulator, with another policy, other settings, nodes or apps.  Plans and
simulations change nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dorm.api.errors import Invalid, Unavailable
from dorm.api.handlers import Page, Seen, Stored, answer_from_state, requester, seq_of, stored
from dorm.api.lives import Subject
from dorm.api.resources.apps import Why
from dorm.api.responses import Answer, answer
from dorm.api.routes import Call, Link, Parameters, Route
from dorm.client import operator_requests
from dorm.core import state as core
from dorm.core.query.assumed import Assumed, Figures, NewNodes, PlannedApp, Round
from dorm.core.query.in_force import Offered, Setting, in_force, offered
from dorm.core.query.plans import MOST_ROUNDS, plan
from dorm.core.query.trying import Tried, tried
from dorm.core.settings import settings_shown
from dorm.core.state import RefusedChange
from dorm.local.spec_files import parse_spec
from dorm.policies.registry import built_in, summary_of, version_of
from events.cloudevents import rfc3339
from events.kinds import AppUpdated, PolicyChanged
from events.limits import Name
from events.quantities import resource
from events.spec import CheckedSpec, check_spec
from events.spec.sweeps import expanded, is_sweep
from replay.moments import AtSequence
from replay.page.forked import ForkView, fork_view
from replay.page.timeline import WIDEST
from replay.simulator.forks.starting import Start, forecast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.api.lives import Life
    from dorm.core.state import State
    from replay.moments import Moment


# --- settings ---------------------------------------------------------------------------------------------------------


class Failing(msgspec.Struct, frozen=True):
    """The policy fails, so every app keeps what it has."""

    code: str
    reason: str
    since: str


class PolicyDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force."""

    position: str
    policy: str
    version: int | None
    plugin: str
    """The distribution that it comes from; "" for a policy of Dorm itself."""
    gist: str
    """What it does, in a few words."""
    fails: Failing | None
    parameters: list[Setting]
    times: list[Setting]
    checkpoints: str
    """Id of the cluster's folder of checkpoints."""
    refused: list[RefusedChange]
    """The latest changes that the cluster did not accept."""


class PoliciesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All policies that the cluster's masters have."""

    position: str
    policy: str
    """The one in force."""
    policies: list[Offered]
    """Dorm's own by name, then plug-ins."""


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings to change; omitted ones stay. Names and units are those of the log."""

    policy: Annotated[str, msgspec.Meta(min_length=1, max_length=512)] | None = None
    """Another policy starts with its own defaults."""
    params: dict[str, Any] | None = None
    """Replaces all parameters."""
    set_params: dict[str, Any] | None = None
    """Changes these parameters; null returns one to its default."""
    quiet_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] | None = None
    quiet_limit_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] | None = None
    idle_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] | None = None
    heartbeat_s: Annotated[float, msgspec.Meta(ge=0.1, le=3_600)] | None = None
    node_grace_s: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] | None = None
    node_lease_s: Annotated[float, msgspec.Meta(ge=1, le=864_000)] | None = None
    checkpoints: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    retention_s: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] | None = None
    tenant_retention_s: dict[Name, Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] | None] | None = None
    """The same for tenants of their own; null returns one to `retention_s`."""
    weights: Literal["apps", "tenants"] | None = None
    """What an app's weight counts against."""
    tenant_apps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    """How many apps a tenant may have that have not ended."""
    suspect_after: Annotated[int, msgspec.Meta(ge=0, le=32)] | None = None
    """After the failures of how many different apps a node is suspect; 0: never."""
    suspect_within_s: Annotated[float, msgspec.Meta(ge=60, le=604_800)] | None = None
    """Within which time they have to fail."""

    def event(self) -> PolicyChanged:
        given: Mapping[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        return PolicyChanged(**given)


class Settings(core.Settings):
    """Settings that `PolicyChanged` sets; see there.  Those that nobody has set are left out."""

    tenant_retention_s: dict[str, float] | UnsetType = UNSET  # type: ignore[assignment]  # The core has it always.
    weights: str | UnsetType = UNSET  # type: ignore[assignment]
    tenant_apps: int | UnsetType = UNSET  # type: ignore[assignment]


def shown_settings(settings: core.Settings) -> Settings:
    return Settings(**settings_shown(settings))


class Changed(Stored, frozen=True, kw_only=True):
    """A change is on the log and in force."""

    settings: Settings


class TriedDocument(Tried, frozen=True, kw_only=True):
    """What a change would do.  Nothing was changed."""

    position: str


async def get_policy(call: Call[Seen, None]) -> Answer:
    """Every parameter and every time, with default and meaning."""

    def build(state: State) -> PolicyDocument:
        settings = state.settings
        parameters, times = in_force(settings, state.plugins)
        plugin, failed = state.plugins.get(settings.policy), state.policy_failure
        known = built_in(settings.policy)
        return PolicyDocument(
            position=str(state.seq),
            policy=settings.policy,
            version=version_of(settings.policy) if known else plugin.version if plugin is not None else None,
            plugin=plugin.plugin if plugin is not None else "",
            gist=summary_of(settings.policy),
            fails=None if failed is None else Failing(failed.code, failed.reason, rfc3339(failed.since)),
            parameters=parameters,
            times=times,
            checkpoints=state.checkpoints,
            refused=list(state.refused_changes),
        )

    return await answer_from_state(call, build)


async def list_policies(call: Call[Seen, None]) -> Answer:
    """Those that Dorm has, and the plug-ins that the leading master announced, each with the JSON Schema of its parameters."""
    # The first call loads the policies, which is no work for the thread that folds.
    await asyncio.to_thread(offered, {})

    def build(state: State) -> PoliciesDocument:
        return PoliciesDocument(position=str(state.seq), policy=state.settings.policy, policies=offered(state.plugins))

    return await answer_from_state(call, build)


async def change_policy(call: Call[Parameters, PolicyChange]) -> Answer:
    """The change is an event on the log, and holds from the next round on."""
    async with requester(call) as client:
        settings = await client.change_policy(call.body.event())
        return stored(Changed(position=str(client.stored), settings=shown_settings(settings)), client, 200)


async def try_policy(call: Call[Parameters, PolicyChange]) -> Answer:
    """Whether a change would be accepted, and which nodes and apps it would touch; changes nothing."""
    services, event = call.services, call.body.event()
    client = services.requester(call.user)
    up = await services.follower.look(
        lambda state: {node.id: node.up_at for node in state.nodes.values() if node.condition == "up"}
    )
    heard = {name: max(since, await client.last_heard(name)) for name, since in up.items()} if len(up) <= 200 else up
    async with services.heavy.turn():
        state = await services.moments.present()
        now = max(state.time, services.clock())

        def work() -> Answer:
            trial = tried(state, event, heard, now)
            fields = {name: getattr(trial, name) for name in Tried.__struct_fields__}
            return answer(TriedDocument(**fields, position=str(state.seq)), state.seq, pack=call.packs)

        return await services.heavy.run(work)


# --- whether anything is decided ------------------------------------------------------------------------------------------


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """Whether decisions are made."""

    position: str
    paused: bool
    """Nothing new is decided.  Submissions are accepted, and what was decided is carried out."""
    since: str | None = None
    by: str = ""
    reason: str = ""


class Paused(Stored, frozen=True, kw_only=True):
    """A request is stored, and in force from there on."""

    paused: bool


async def get_scheduling(call: Call[Seen, None]) -> Answer:
    """With who paused it, since when and why."""

    def build(state: State) -> Scheduling:
        pause, position = state.paused, str(state.seq)
        if pause is None:
            return Scheduling(position=position, paused=False)
        return Scheduling(position=position, paused=True, since=rfc3339(pause.at), by=pause.by, reason=pause.reason)

    return await answer_from_state(call, build)


async def pause_scheduling(call: Call[Parameters, Why]) -> Answer:
    """Nothing new is decided until it is resumed."""
    async with requester(call) as client:
        await operator_requests.pause(client, call.body.reason)
        return stored(Paused(position=str(client.stored), paused=True), client)


async def resume_scheduling(call: Call[Parameters, Why]) -> Answer:
    """Decisions are made again."""
    async with requester(call) as client:
        await operator_requests.resume(client, call.body.reason)
        return stored(Paused(position=str(client.stored), paused=False), client)


ROUTES = [
    Route(
        "GET", "/v1/policies", list_policies, "Policies and their parameters", query=Seen, answer=PoliciesDocument,
        tag="policy",
    ),
    Route("GET", "/v1/policy", get_policy, "The settings in force", query=Seen, answer=PolicyDocument, tag="policy"),
    Route(
        "PUT", "/v1/policy", change_policy, "Change settings", body=PolicyChange, answer=Changed, tag="policy",
        problems=(409, 504), links=(Link("get_policy", "min_seq", "$response.body#/position", "query"),),
    ),
    Route(
        "POST", "/v1/policy/try", try_policy, "Try settings", body=PolicyChange, answer=TriedDocument, tag="policy",
        long=True,
    ),
    Route(
        "GET", "/v1/scheduling", get_scheduling, "Whether scheduling is paused", query=Seen, answer=Scheduling,
        tag="policy",
    ),
    Route(
        "POST", "/v1/scheduling/pause", pause_scheduling, "Pause scheduling", body=Why, answer=Paused, status=202,
        tag="policy", problems=(409, 504),
    ),
    Route(
        "POST", "/v1/scheduling/resume", resume_scheduling, "Resume scheduling", body=Why, answer=Paused, status=202,
        tag="policy", problems=(409, 504),
    ),
]  # fmt: skip


# --- the next decision ------------------------------------------------------------------------------------------------

_MOST = 64
"""Most apps or nodes of one kind in an assumption."""

PlanName = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Names = PlanName | Annotated[list[PlanName], msgspec.Meta(max_length=_MOST)]
Text = Annotated[str, msgspec.Meta(max_length=1 << 18)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Quantity = Annotated[str, msgspec.Meta(max_length=80)]


class PlannedUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another weight or other bounds."""

    app: PlanName
    weight: Annotated[float, msgspec.Meta(ge=0.001, le=1000)] | None = None
    n_min: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    n_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None


class PlannedNodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that join, of one shape."""

    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    capacity: dict[PlanName, Amount | Quantity] = {}
    """In base units, or as text with a unit (`"8"` cores, `"64GiB"`); with `like` only the differences."""
    labels: dict[PlanName, str] = {}
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
    """A spec or a sweep, several specs, or one as text in YAML."""
    cancel: Names | None = None
    cancel_sweep: PlanName | None = None
    """A sweep, all of whose apps are cancelled."""
    hold: Names | None = None
    release: Names | None = None
    restart: Names | None = None
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
        single = parse_spec(self.submit) if isinstance(self.submit, str) else self.submit
        specs = self.submit if isinstance(self.submit, list) else [single] if single is not None else []
        updates: tuple[AppUpdated, ...] = ()
        if self.update is not None:
            change = self.update
            updates = (AppUpdated(app=change.app, weight=change.weight, n_min=change.n_min, n_max=change.n_max),)
        return Assumed(
            settings=self.policy or {},
            joins=tuple(NewNodes(node.count, node.amounts(), node.labels, node.like) for node in self.nodes),
            removed=_names(self.without),
            drained=_names(self.drain),
            undrained=_names(self.undrain),
            cancelled=_names(self.cancel),
            cancelled_sweeps=_names(self.cancel_sweep),
            updated=updates,
            held=_names(self.hold),
            released=_names(self.release),
            restarted=_names(self.restart),
            specs=tuple(checked for spec in specs for checked in _apps_of(spec)),
        )


def _apps_of(document: Any) -> Sequence[CheckedSpec]:
    """Return the app of a spec, or those of a sweep.  Raises SpecError."""
    return expanded(document).specs if is_sweep(document) else (check_spec(document, every=True),)


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
    planned = plan(state, now, body.assumed(), rounds=body.rounds)
    made = PlanDocument(
        position=str(planned.seq),
        at=rfc3339(planned.at),
        assumed=planned.assumed,
        changes=[app for app in planned.apps if app.kind or app.end],
        waiting=[
            PlannedWait(app.id, app.name, app.reason.code if app.reason else "", app.reason.text if app.reason else "")
            for app in planned.apps
            if not app.after and not app.end
        ],
        before=planned.before,
        after=planned.after,
        rounds=planned.rounds,
    )
    return answer(made, planned.seq, pack=pack)


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
        forecasts = await services.follower.look(waiting)
    else:
        forecasts = await services.moments.look(seq, waiting)
    shown = forecasts[: query.limit]
    items: list[Forecast] = []
    if shown:
        now = services.clock() if seq is None else 0
        items = await services.lives.ask(Subject(shown[0][0]), upto, partial(_forecasts, shown, now))
    after = str(shown[-1][2]) if len(forecasts) > query.limit else None
    return answer(Page(items=items, next=after, previous=None, position=str(upto)), upto, pack=call.packs)


def _forecasts(apps: Sequence[tuple[str, str, int]], now: int, life: Life) -> list[Forecast]:
    at = max(life.state.time, now)
    return [Forecast(app, name, str(seq), forecast(life.outlook, life.state, app, at)) for app, name, seq in apps]


PLAN_ROUTES = [
    Route(
        "POST", "/v1/plan", plan_next, "Plan the next decision", query=Seen, body=Assumptions, answer=PlanDocument,
        tag="policy", long=True,
    ),
    Route(
        "GET", "/v1/forecasts", list_forecasts, "When waiting apps start", query=ForecastsQuery, answer=Page[Forecast],
        tag="policy", long=True,
    ),
]  # fmt: skip


# --- the log played on with a change ----------------------------------------------------------------------------------

_SPARE_S = 2.0
"""Seconds that remain of a request's time for saying that it was too short."""

_MOST_NODES = 1000
"""Nodes that join."""


class ForkAsked(Supposed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is different from the moment of the fork on; nothing, if empty."""

    horizon_s: Annotated[float, msgspec.Meta(ge=1, le=7 * 86_400)] | None = None
    """How long to simulate; default: twice the log's time after the moment, or a day."""
    width: Annotated[int, msgspec.Meta(ge=1, le=WIDEST)] = 1000
    """Pixels of the pictures; what is narrower than one is merged."""


async def fork_log(call: Call[Seen, ForkAsked]) -> Answer:
    """Continue the log from a moment (`at`), unchanged and with the changes, and compare both with what happened.

    Bounded in time; closing the request ends the simulation.  `trust` is the error of the unchanged simulation."""
    services, body = call.services, call.body
    if sum(node.count for node in body.nodes) > _MOST_NODES:
        raise Invalid(f"a fork adds at most {_MOST_NODES} nodes; `dorm whatif` has no such bound")
    seconds = services.options.limits.long_answer_s - _SPARE_S
    moment: Moment | None = None
    if (seq := await seq_of(call, call.query.at)) is not None:
        moment = AtSequence(seq)
    changes = await asyncio.to_thread(body.assumed)
    async with services.forks.turn():
        now = 0 if services.options.archive or moment is not None else services.clock()
        try:
            async with asyncio.timeout(seconds):
                forked = await fork_view(
                    services.follower.log, moment, changes, now=now, horizon_s=body.horizon_s, width=body.width
                )
        except TimeoutError:
            raise Unavailable(
                f"the simulation takes longer than {seconds:.0f} s; choose a later moment or a shorter horizon, or run "
                "`dorm whatif`, which has no such bound",
                code="api.too_slow",
            ) from None
    return await asyncio.to_thread(answer, forked, forked.position, pack=call.packs)


WHATIF_ROUTES = [
    Route(
        "POST", "/v1/whatif", fork_log, "Fork the log in the simulator", query=Seen, body=ForkAsked, answer=ForkView,
        tag="moments", long=True,
    ),
]  # fmt: skip
