"""What a node's containers use, as its agent last reported, beside what is reserved for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.looking import MinSeq, settled
from dorm.api.routes import Call, Parameters, Route
from dorm.client.errors import NotFound
from events.cloudevents import rfc3339
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.api.following.reports import Key
    from dorm.core.state import State


class UsageQuery(Parameters, frozen=True, kw_only=True):
    """Parameters of a node's usage: there is none of the past, since heartbeats are no part of the log."""

    min_seq: MinSeq | None = None


class ContainerUsage(msgspec.Struct, frozen=True):
    """What one container uses."""

    app: str
    name: str
    generation: int
    slot: int
    cpu: int | None
    """Milli-cores; null where that is not known yet."""
    over_s: float | None
    """The length of time that this is a mean over: between two reports, or since the container's start."""
    memory: int
    """Bytes resident."""


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Use of a node by its containers.  Devices are reserved whole, and agents report no use of them."""

    position: str
    node: str
    at: str | None
    """When the node's last report was stored; null where there is none."""
    age_s: float | None
    """How long ago that is."""
    measured: bool
    """False where there is no report, or the node's engine did not say in time what its containers use."""
    used: dict[str, int]
    """Totals in base units: `cpu` where it is known of all containers, and `memory`."""
    containers: list[ContainerUsage]


class _Known(NamedTuple):
    identity: str
    names: dict[str, str]
    started: dict[Key, int]


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
    found = await services.reports.of(node, known.identity, known.started)
    if found is None:
        return answer(
            NodeUsage(position=position, node=node, at=None, age_s=None, measured=False, used={}, containers=[]),
            position,
        )
    used: dict[str, int] = {}
    if found.measured:
        used["memory"] = sum(one.memory for one in found.containers)
        cores = [one.cpu for one in found.containers if one.cpu is not None]
        if len(cores) == len(found.containers):
            used["cpu"] = sum(cores)
    made = NodeUsage(
        position=position,
        node=node,
        at=rfc3339(found.time),
        age_s=max(0.0, round((services.clock() - found.time) / SECOND, 3)),
        measured=found.measured,
        used=used,
        containers=[
            ContainerUsage(
                one.app, known.names.get(one.app, one.app), one.generation, one.slot, one.cpu, one.over_s, one.memory
            )
            for one in found.containers
        ],
    )
    return answer(made, position, pack=call.packs)


ROUTES = [
    Route(
        "GET", "/v1/nodes/{node}/usage", node_usage, "What a node's containers use", query=UsageQuery, answer=NodeUsage,
        tag="nodes",
    ),
]  # fmt: skip
