"""A node's part, derived from the state.

A part holds the master's facts that the node has to act on, never mere plans: a live adjustment appears with
its release, a membership as committed with its `MembershipCommitted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core.settings import times_of
from events.identities import tenant_in
from events.kinds import Placed
from events.parts import AppPart, ContainerPart, HeldPart, Masters, NodePart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import App, Container, Generation, State


def part_of(state: State, cluster: str, node: str) -> NodePart:
    """Return the part of one node as of `state.seq`.  The node need not have joined yet."""
    return _part(state, cluster, node, [app for app in state.apps.values() if _is_on(app, node)])


def parts_of(state: State, cluster: str, nodes: Iterable[str]) -> list[NodePart]:
    """Return the parts of several nodes, in their order; each app of the state is looked at once."""
    apps: dict[str, list[App]] = {node: [] for node in nodes}
    for app in state.apps.values():
        for node in nodes_of(app):
            if node in apps:
                apps[node].append(app)
    return [_part(state, cluster, node, placed) for node, placed in apps.items()]


def nodes_of(app: App) -> list[str]:
    """Return the nodes whose parts mention the app, without repeats."""
    nodes: dict[str, None] = {}
    for generation in app.generations.values():
        for container in generation.all_containers():
            nodes[container.node] = None
    return list(nodes)


def known_nodes(state: State) -> list[str]:
    """Return the nodes that have a part, sorted: those that have joined, and those that may."""
    known = state.known
    return sorted({**state.nodes, **(known.nodes if known is not None else {})})


def _is_on(app: App, node: str) -> bool:
    return any(
        container.node == node for generation in app.generations.values() for container in generation.all_containers()
    )


def _part(state: State, cluster: str, node: str, apps: list[App]) -> NodePart:
    there, parts, ended, owners = state.nodes.get(node), {}, {}, {}
    for app in sorted(apps, key=lambda app: app.id):
        if app.ended and not _may_run(app, node):
            ended[app.id] = app.ended_at
        elif app.generation in app.generations and (_may_run(app, node) or _is_placed(app, node)):
            parts[app.id] = _app(state, app, app.generations[app.generation], node)
        if app.id not in parts:
            owners[app.id] = tenant_in(app.submission) or app.spec.user
    return NodePart(
        cluster=cluster,
        node=node,
        seq=state.seq,
        time=state.time,
        epoch=state.epoch,
        condition=there.condition if there is not None else "",
        lease_ended=there.lease_ended if there is not None else False,
        holder=there.identity if there is not None else "",
        held_at=there.address if there is not None else "",
        lease_s=there.lease_s if there is not None else 0.0,
        times=times_of(state.settings),
        retentions=state.settings.tenant_retention_s,
        masters=_masters(state, node),
        apps=parts,
        ended=ended,
        owners=owners,
    )


def _masters(state: State, node: str) -> Masters | None:
    known = state.known
    if known is None:
        return None
    return Masters(known.since, known.masters, known.masters_since, known.masters_before, known.nodes.get(node))


def _may_run(app: App, node: str) -> bool:
    """Return whether a container that was released to this node may run, or is about to."""
    return any(
        container.node == node and container.state != "exited"
        for generation in app.generations.values()
        if generation.released
        for container in generation.all_containers()
    )


def _is_placed(app: App, node: str) -> bool:
    """Return whether the latest generation has a place on the node."""
    generation = app.generations[app.generation]
    return any(container.node == node for container in generation.all_containers())


def _app(state: State, app: App, generation: Generation, node: str) -> AppPart:
    members = _announced(generation) if generation.released else []
    return AppPart(
        spec=app.spec,
        tenant=tenant_in(app.submission),
        generation=app.generation,
        placement=_placed(_committed(generation)),
        members=_placed(members),
        membership=generation.announced if generation.released else 0,
        founders=_founders(generation),
        master_port=generation.master_port,
        released=generation.released,
        failed=generation.failed,
        resume=generation.resume,
        checkpoints=generation.folder,
        ended_at=app.ended_at,
        killed=app.kill == "ordered",
        ahead=generation.adjustment == "restart",
        held=_held(state, app, generation),
        batch=app.batch,
        **_earlier(app),
        containers=_containers(app, node),
    )


def _earlier(app: App) -> dict[str, Any]:
    """Return the spec of containers that may still run and were started before the app's spec was edited."""
    known = app.revisions
    if known is None or known.earlier is None:
        return {}
    upto = known.earlier.upto
    numbers = [number for number, generation in app.generations.items() if generation.revision <= upto]
    return {"earlier": known.earlier.spec, "earlier_until": max(numbers, default=0)}


def _committed(generation: Generation) -> list[Container]:
    """Return the members that agents know: until the master has committed a membership, members that it leaves out
    keep running."""
    members = [container for _, container in sorted(generation.containers.items())]
    if not generation.untold:
        return members
    return [
        *members,
        *(container for _, container in sorted(generation.leaving.items()) if container.state == "running"),
    ]


def _announced(generation: Generation) -> list[Container]:
    change = generation.change
    return list((generation.planned if change is not None and change.released_at else generation.containers).values())


def _founders(generation: Generation) -> list[int]:
    if not generation.released:
        return []
    return list(generation.founders) or sorted(generation.containers)


def _placed(containers: Iterable[Container]) -> list[Placed]:
    ordered = sorted(containers, key=lambda member: member.slot)
    return [Placed(slot=member.slot, node=member.node, address=member.address, port=member.port) for member in ordered]


def _held(state: State, app: App, generation: Generation) -> HeldPart | None:
    """Return what works on while `generation` is prepared.  A node that is lost prepares nothing, so nothing waits for it."""
    before = app.generations.get(generation.number - 1)
    if not generation.prepare_until or generation.released or before is None or not before.released or before.failed:
        return None
    gone = (node for node in generation.preparing if node in state.nodes and state.nodes[node].condition != "up")
    if next(gone, None) is not None:
        return None
    return HeldPart(before.number, generation.prepare_until, list(generation.preparing))


def _containers(app: App, node: str) -> list[ContainerPart]:
    return [
        ContainerPart(number, container.slot, container.state)
        for number, generation in sorted(app.generations.items())
        if generation.released
        for container in sorted(generation.all_containers(), key=lambda container: container.slot)
        if container.node == node
    ]
