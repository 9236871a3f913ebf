"""The settings that the cluster decides by: those in force, those to choose from, trying others, and changing them; and
whether anything is decided at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.handlers import Seen, Stored, requester, seen, stored
from dorm.api.resources.apps import Why
from dorm.api.routes import Call, Link, Parameters, Route
from dorm.client import operating
from dorm.core.query.in_force import Setting, gist_of, in_force
from dorm.core.query.offered import Offered, offered
from dorm.core.query.planning.trying import Tried, tried
from dorm.core.state import RefusedChange, Settings, State
from dorm.policies.registry import built_in, policy
from events.cloudevents import rfc3339
from events.kinds import PolicyChanged
from events.limits import Name

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        parameters, times = in_force(settings, state.policy_plugins)
        plugin, failed = state.policy_plugins.get(settings.policy), state.policy_failure
        known = built_in(settings.policy)
        return PolicyDocument(
            position=str(state.seq),
            policy=settings.policy,
            version=policy(settings.policy).version if known else plugin.version if plugin is not None else None,
            plugin=plugin.plugin if plugin is not None else "",
            gist=gist_of(settings.policy),
            fails=None
            if isinstance(failed, msgspec.UnsetType)
            else Failing(failed.code, failed.reason, rfc3339(failed.since)),
            parameters=parameters,
            times=times,
            checkpoints=state.checkpoints,
            refused=list(state.refused_changes),
        )

    return await seen(call, build)


async def list_policies(call: Call[Seen, None]) -> Answer:
    """Those that Dorm has, and the plug-ins that the leading master announced, each with the JSON Schema of its parameters."""
    # The first call loads the policies, which is no work for the thread that folds.
    await asyncio.to_thread(offered, {})

    def build(state: State) -> PoliciesDocument:
        return PoliciesDocument(
            position=str(state.seq), policy=state.settings.policy, policies=offered(state.policy_plugins)
        )

    return await seen(call, build)


async def change_policy(call: Call[Parameters, PolicyChange]) -> Answer:
    """The change is an event on the log, and holds from the next round on."""
    async with requester(call) as client:
        settings = await client.change_policy(call.body.event())
        return stored(Changed(position=str(client.stored), settings=settings), client, 200)


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
            found = tried(state, event, heard, now)
            told = {name: getattr(found, name) for name in Tried.__struct_fields__}
            return answer(TriedDocument(**told, position=str(state.seq)), state.seq, pack=call.packs)

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

    return await seen(call, build)


async def pause_scheduling(call: Call[Parameters, Why]) -> Answer:
    """Nothing new is decided until it is resumed."""
    async with requester(call) as client:
        await operating.pause(client, call.body.reason)
        return stored(Paused(position=str(client.stored), paused=True), client)


async def resume_scheduling(call: Call[Parameters, Why]) -> Answer:
    """Decisions are made again."""
    async with requester(call) as client:
        await operating.resume(client, call.body.reason)
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
