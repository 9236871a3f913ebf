"""Nodes: list, look at, what their containers use, drain, forget, trust again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from dorm.api.answers import answer
from dorm.api.handlers import Limit, MinSeq, Page, Seen, Stored, answer_from_state, paged, requester, settled, stored
from dorm.api.resources.apps import Why
from dorm.api.routes import Call, Link, Parameters, Route
from dorm.client import operating
from dorm.client.errors import NotFound
from dorm.core.query.views import NodeRow, leaving, node_rows
from events.cloudevents import rfc3339
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.api.answers import Answer
    from dorm.api.reports import Key
    from dorm.core.state import State


class NodesQuery(Seen, frozen=True, kw_only=True):
    """Parameters of the list of nodes."""

    after: Annotated[str, msgspec.Meta(max_length=512, description="Only nodes whose names sort after this.")] = ""
    limit: Limit = 100
    condition: Annotated[str, msgspec.Meta(max_length=32, description="Only nodes in this condition.")] | None = None


class NodeContainer(msgspec.Struct, frozen=True):
    """A container on a node."""

    app: str
    name: str
    generation: int
    slot: int
    state: str
    port: int


class Leaving(msgspec.Struct, frozen=True):
    """What a node still holds of one app, and what happens to it next."""

    app: str
    name: str
    containers: int
    next: str


class NodeDetails(NodeRow, frozen=True, kw_only=True):
    """Everything about one node."""

    containers_now: list[NodeContainer]
    leaving: list[Leaving]
    """Of a node that is being drained."""


class Draining(Why, frozen=True, forbid_unknown_fields=True):
    """How a node is emptied."""

    maintenance: bool = False
    """Someone works on the machine: it may be silent."""


class Drained(Stored, frozen=True, kw_only=True):
    """A request is stored; the next decision takes it up."""

    node: str
    drain: bool


class Forgotten(Stored, frozen=True, kw_only=True):
    """The node is no longer listed."""

    node: str


class Trusted(Stored, frozen=True, kw_only=True):
    """The node takes new containers again."""

    node: str


class UsageQuery(Parameters, frozen=True, kw_only=True):
    """Parameters of a node's usage: there is none of the past, since heartbeats are not part of the log."""

    min_seq: MinSeq | None = None


class ContainerUsage(msgspec.Struct, frozen=True):
    """What one container uses."""

    app: str
    name: str
    generation: int
    slot: int
    cpu: int | None
    """Milli-cores; null if that is not known yet."""
    over_s: float | None
    """The length of time that this is a mean over: between two reports, or since the container's start."""
    memory: int
    """Bytes resident."""


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Use of a node by its containers.  Devices are reserved whole, and agents report no use of them."""

    position: str
    node: str
    at: str | None
    """When the node's last report was stored; null if there is none."""
    age_s: float | None
    """How long ago that is."""
    measured: bool
    """False if there is no report, or the node's engine did not report the use in time."""
    used: dict[str, int]
    """Totals in base units: `cpu` if it is known for all containers, and `memory`."""
    containers: list[ContainerUsage]


class _Known(NamedTuple):
    identity: str
    names: dict[str, str]
    started: dict[Key, int]


async def list_nodes(call: Call[NodesQuery, None]) -> Answer:
    """By name."""
    query = call.query

    def wanted(row: NodeRow) -> bool:
        return row.name > query.after and (query.condition is None or row.condition == query.condition)

    def build(state: State) -> Page[NodeRow]:
        rows, after = paged((row for row in node_rows(state) if wanted(row)), lambda row: row.name, query.limit)
        return Page(items=rows, next=after, previous=None, position=str(state.seq))

    return await answer_from_state(call, build)


async def get_node(call: Call[Seen, None]) -> Answer:
    """With the containers that are there."""
    name = call.path("node")

    def build(state: State) -> NodeDetails:
        row = next((row for row in node_rows(state) if row.name == name), None)
        if row is None:
            raise NotFound(f"there is no node {name!r}; `/v1/nodes` lists them", code="node.not_found")
        known: dict[str, Any] = {field: getattr(row, field) for field in NodeRow.__struct_fields__}
        drained = [Leaving(app.id, app.name, app.containers, app.next) for app in leaving(state, name)]
        return NodeDetails(
            **known,
            containers_now=list(_containers(state, name)),
            leaving=drained if state.nodes[name].draining else [],
        )

    return await answer_from_state(call, build)


def _containers(state: State, node: str) -> Iterator[NodeContainer]:
    for app in sorted(state.apps.values(), key=lambda app: (app.seq, app.id)):
        for generation in app.generations.values():
            for container in generation.all_containers():
                if container.node == node:
                    yield NodeContainer(
                        app.id, app.name, generation.number, container.slot, container.state, container.port
                    )


async def node_usage(call: Call[UsageQuery, None]) -> Answer:
    """Cores and memory that its containers use, from its last heartbeat."""
    services, node = call.services, call.path("node")
    await settled(call)

    def look(state: State) -> _Known:
        if node not in state.nodes:
            raise NotFound(f"there is no node {node!r}; `/v1/nodes` lists them", code="node.not_found")
        names: dict[str, str] = {}
        started: dict[Key, int] = {}
        for app in state.apps.values():
            for generation in app.generations.values():
                for container in generation.all_containers():
                    if container.node == node:
                        names[app.id] = app.name
                        started[app.id, generation.number, container.slot] = container.started_at
        return _Known(state.nodes[node].identity, names, started)

    known = await services.follower.look(look)
    position = str(services.follower.seq)
    report = await services.reports.of(node, known.identity, known.started)
    if report is None:
        return answer(
            NodeUsage(position=position, node=node, at=None, age_s=None, measured=False, used={}, containers=[]),
            position,
        )
    used: dict[str, int] = {}
    if report.measured:
        used["memory"] = sum(container.memory for container in report.containers)
        cores = [container.cpu for container in report.containers if container.cpu is not None]
        if len(cores) == len(report.containers):
            used["cpu"] = sum(cores)
    made = NodeUsage(
        position=position,
        node=node,
        at=rfc3339(report.time),
        age_s=max(0.0, round((services.clock() - report.time) / SECOND, 3)),
        measured=report.measured,
        used=used,
        containers=[
            ContainerUsage(
                container.app,
                known.names.get(container.app, container.app),
                container.generation,
                container.slot,
                container.cpu,
                container.over_s,
                container.memory,
            )
            for container in report.containers
        ],
    )
    return answer(made, position, pack=call.packs)


async def drain_node(call: Call[Parameters, Draining]) -> Answer:
    """Empty it by adjustments; it takes nothing new until it is used again."""
    return await _drain(call, drain=True, maintenance=call.body.maintenance)


async def undrain_node(call: Call[Parameters, Why]) -> Answer:
    """Use it again."""
    return await _drain(call, drain=False)


async def forget_node(call: Call[Parameters, Why]) -> Answer:
    """Only a node on which nothing can run any more: it has left, or its lease has ended."""
    node = call.path("node")
    async with requester(call) as client:
        await operating.forget(client, node, call.body.reason)
        return stored(Forgotten(position=str(client.stored), node=node), client)


async def trust_node(call: Call[Parameters, Why]) -> Answer:
    """Use a suspect node again, and forget which apps failed there."""
    node = call.path("node")
    async with requester(call) as client:
        await operating.trust(client, node, call.body.reason)
        return stored(Trusted(position=str(client.stored), node=node), client)


async def _drain(call: Call[Parameters, Any], *, drain: bool, maintenance: bool = False) -> Answer:
    node = call.path("node")
    async with requester(call) as client:
        await client.drain(node, drain=drain, reason=call.body.reason, maintenance=maintenance)
        return stored(Drained(position=str(client.stored), node=node, drain=drain), client)


ROUTES = [
    Route(
        "GET", "/v1/nodes", list_nodes, "List nodes", query=NodesQuery, answer=Page[NodeRow], tag="nodes",
        links=(
            Link("get_node", "node", "$response.body#/items/0/name"),
            Link("node_story", "node", "$response.body#/items/0/name"),
            Link("drain_node", "node", "$response.body#/items/0/name"),
        ),
    ),
    Route("GET", "/v1/nodes/{node}", get_node, "Look at a node", query=Seen, answer=NodeDetails, tag="nodes"),
    Route(
        "GET", "/v1/nodes/{node}/usage", node_usage, "What a node's containers use", query=UsageQuery, answer=NodeUsage,
        tag="nodes",
    ),
    Route(
        "POST", "/v1/nodes/{node}/drain", drain_node, "Drain a node", body=Draining, answer=Drained, status=202, tag="nodes",
        problems=(504,), links=(Link("undrain_node", "node", "$response.body#/node"),),
    ),
    Route(
        "POST", "/v1/nodes/{node}/undrain", undrain_node, "Use a node again", body=Why, answer=Drained, status=202,
        tag="nodes", problems=(504,), links=(Link("get_node", "node", "$response.body#/node"),),
    ),
    Route(
        "POST", "/v1/nodes/{node}/forget", forget_node, "Forget a node", body=Why, answer=Forgotten, status=202,
        tag="nodes", problems=(409, 504),
    ),
    Route(
        "POST", "/v1/nodes/{node}/trust", trust_node, "Trust a suspect node again", body=Why, answer=Trusted, status=202,
        tag="nodes", problems=(409, 504), links=(Link("get_node", "node", "$response.body#/node"),),
    ),
]  # fmt: skip
