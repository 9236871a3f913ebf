"""What holds in every state, whatever the log says: for tests and audits, cheap enough to ask after every record.

`violations(state)` gives a sentence for each promise that the state breaks; a sound core never has any.  Nothing here
mends anything: a violation is a bug in the fold or in a decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.failures import limit_of
from dorm.core.gates import CODE as HELD_BACK
from dorm.core.gates import limit_of as limit_of_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dorm.core.generation import Container
    from dorm.core.state import App, Generation, Node, State

    _Owner = tuple[int, str, int]  # slot, app, generation

_RENDEZVOUS = -1
"""Slot that stands for the port at which the members of a generation meet."""


def violations(state: State) -> list[str]:
    """Broken promises, in a fixed order; empty for a sound state."""
    return [
        *_overfull(state),
        *_overplanned(state),
        *_generations(state),
        *_ports(state),
        *_names(state),
        *_groups(state),
        *_numbers(state),
    ]


def may_run(generation: Generation) -> bool:
    """Whether a container of it may be running somewhere."""
    return generation.released and not generation.ended


def _overfull(state: State) -> Iterator[str]:
    """Containers that may run fit on their node (promise 2). A node may join again with less than runs on it, so
    nodes that changed since one of these places was decided are excluded."""
    released = (
        (app, generation, generation.all_containers())
        for app in state.apps.values()
        for generation in app.generations.values()
        if generation.released
    )
    used, since = _used_by_node(released, exited=False)
    for node in state.nodes.values():
        if node.id in used and node.changed_seq <= since[node.id]:
            yield from _beyond(node, used[node.id], "may run")


def _overplanned(state: State) -> Iterator[str]:
    """Decided containers fit as well; otherwise, a release would wait for room that is never freed."""
    plans = [(app, app.current) for app in state.live_apps()]
    for app, current in plans:
        for name in current.by_node() if current and not current.released else ():
            node = state.nodes.get(name)
            probes = node is not None and node.suspect is not None and node.suspect.probe == app.id
            if node is None or not (node.usable or probes):
                yield f"{app.id}: its next generation waits for node {name}, which takes nothing new"
    places = ((app, current, current.planned.values()) for app, current in plans if current is not None)
    planned, since = _used_by_node(places, exited=True)
    for node in state.nodes.values():
        if node.id in planned and node.usable and node.changed_seq <= since[node.id]:
            yield from _beyond(node, planned[node.id], "is planned")


def _used_by_node(
    parts: Iterable[tuple[App, Generation, Iterable[Container]]], *, exited: bool
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Return by node what these containers take there, and the sequence of the oldest decision among theirs; `exited` counts
    those that have exited."""
    used: dict[str, dict[str, int]] = {}
    since: dict[str, int] = {}
    for app, generation, containers in parts:
        for container in containers:
            if exited or container.state != "exited":
                node = container.node
                _add(used.setdefault(node, {}), app.needs(generation))
                since[node] = min(since.get(node, generation.decided_seq), generation.decided_seq)
    return used, since


def _add(used: dict[str, int], demand: dict[str, int]) -> None:
    for name, amount in demand.items():
        used[name] = used.get(name, 0) + amount


def _beyond(node: Node, used: dict[str, int], what: str) -> Iterator[str]:
    for name, amount in sorted(used.items()):
        if amount > node.capacity.get(name, 0):
            yield f"node {node.id}: {amount} of {name} {what}, it has {node.capacity.get(name, 0)}"


def _generations(state: State) -> Iterator[str]:
    for app in state.apps.values():
        running = [number for number, generation in sorted(app.generations.items()) if may_run(generation)]
        if len(running) > 1:
            yield f"{app.id}: generations {running} may run at once"
        if app.generation and app.generation not in app.generations:
            yield f"{app.id}: its latest generation {app.generation} is missing"
        for number, generation in sorted(app.generations.items()):
            for wrong in _generation(app, number, generation):
                yield f"{app.id} generation {number}: {wrong}"


def _generation(app: App, number: int, generation: Generation) -> Iterator[str]:
    if number != generation.number or not 0 < number <= app.generation:
        yield f"is kept as {number}, calls itself {generation.number}, and the latest is {app.generation}"
    states = [container.state for container in generation.containers.values()]
    if (generation.running, generation.exited) != (states.count("running"), states.count("exited")):
        yield f"counts {generation.running} running and {generation.exited} exited, and has {states}"
    if any(slot != container.slot for slot, container in generation.containers.items()):
        yield "a container is kept under another slot"
    if not generation.released:
        if number != app.generation:
            yield "was never released and never will be"
        if any(container.state != "desired" for container in generation.containers.values()):
            yield "a container of it ran before its release"
    elif generation.void:
        yield "is void and released"
    elif not generation.containers:
        yield "is released and has no containers"
    if generation.released and generation.ended and not generation.stopped_at:
        yield "has ended, but nobody noted when"
    if app.ended and number != app.generation and generation.ended:
        yield "is of no use to anybody any more"
    yield from _membership(app, generation)


def _membership(app: App, generation: Generation) -> Iterator[str]:
    """Who joins and leaves during a generation."""
    change, leaving = generation.change, generation.leaving
    if (change is not None or generation.accused) and (not generation.released or generation.failed or app.ended):
        yield "changes its members though it does not go on"
    if not 1 <= generation.membership <= generation.announced:
        yield f"trains in membership {generation.membership}, and {generation.announced} was announced last"
    if any(container.state == "exited" for container in leaving.values()):
        yield "waits for the end of a container that has exited"
    if any(slot not in generation.containers for slot in generation.accused):
        yield f"slots {generation.accused} are reported as gone, and are no members"
    kept = [*generation.containers, *leaving]
    if change is not None:
        if not change.stay or any(slot not in generation.containers for slot in change.stay):
            yield f"members {change.stay} stay, of {sorted(generation.containers)}"
        if change.membership != generation.announced + (not change.released_at):
            yield f"plans membership {change.membership}, and {generation.announced} was announced last"
        if not change.released_at and any(newcomer.state != "desired" for newcomer in change.newcomers.values()):
            yield "a newcomer ran before its room was free"
        kept += change.newcomers if change.released_at else []
    if len(kept) != len(set(kept)) or any(slot >= generation.next_slot for slot in kept):
        yield f"slots {sorted(kept)} are not one container each, below {generation.next_slot}"


def _ports(state: State) -> Iterator[str]:
    """Each port belongs to one container of all those that may run, and to one of all those that are to run."""
    run: dict[tuple[str, int], _Owner] = {}
    planned: dict[tuple[str, int], _Owner] = {}
    for app in state.apps.values():
        current = app.current
        for generation in app.generations.values():
            if may_run(generation):
                yield from _twice(run, app, generation, exited=False)
            if generation is current and not app.ended and not app.cancel_requested:
                yield from _twice(planned, app, generation, exited=True)


def _twice(taken: dict[tuple[str, int], _Owner], app: App, generation: Generation, *, exited: bool) -> Iterator[str]:
    """Ports of the generation that another holds; `exited` counts those of containers that have exited."""
    containers = generation.planned.values() if exited else generation.all_containers()
    held = [(c.address, c.port, c.slot) for c in containers if exited or c.state != "exited"]
    if generation.master_port and generation.containers:
        held.append((generation.master_address, generation.master_port, _RENDEZVOUS))
    for address, port, slot in held:
        owner = (slot, app.id, generation.number)
        if (other := taken.setdefault((address, port), owner)) != owner:
            yield f"{address}:{port} belongs to {_named(other)} and to {_named(owner)}"


def _named(owner: _Owner) -> str:
    slot, app, generation = owner
    return f"{'the rendezvous' if slot == _RENDEZVOUS else f'slot {slot}'} of {app} generation {generation}"


def _names(state: State) -> Iterator[str]:
    for name, holder in state.names.items():
        app = state.apps.get(holder)
        if app is None or app.ended or app.name_key != name:
            yield f"the name {name} belongs to {holder}, which is no live app of that name"
    for key, app in state.apps.items():
        if key != app.id:
            yield f"{app.id} is kept as {key}"
        if not app.ended and state.names.get(app.name_key) != app.id:
            yield f"{app.id} lives and its name {app.name_key} belongs to {state.names.get(app.name_key)}"


def _groups(state: State) -> Iterator[str]:
    """No more apps of a group have a place than may, if all of them state the same limit, which no edit has changed."""
    holding: dict[tuple[str, str], int] = {}
    limits: dict[tuple[str, str], set[int]] = {}
    for app in state.apps.values():
        if app.spec.group is not None and (not app.ended or app.stopping):
            key = app.tenant, app.spec.group.name
            limits.setdefault(key, set()).add(limit_of_group(app) if app.parallel is None else 0)
            holding[key] = holding.get(key, 0) + (app.current is not None or app.stopping)
    for key, count in holding.items():
        (limit,) = limits[key] if len(limits[key]) == 1 else (0,)
        if limit and count > limit:
            yield f"{count} apps of the group {key[1]} have a place, and at most {limit} may"


def _numbers(state: State) -> Iterator[str]:
    if not max(state.round_seq, state.dirty_seq, state.figures.seq) <= state.seq or (
        max(state.dirty_at, state.rebalance_from, state.ticked_at) > state.time
    ):
        yield f"something happened after the last record, {state.seq}"
    if min(state.epoch, state.time, *(getattr(state.counters, name) for name in state.counters.__struct_fields__)) < 0:
        yield "an epoch, a time or a counter is negative"
    for key, node in state.nodes.items():
        if key != node.id or node.changed_seq > state.seq or min(node.capacity.values(), default=0) < 0:
            yield f"node {key}: its id, its last change or its capacity makes no sense"
        if node.lease_ended and node.condition != "lost":
            yield f"node {key}: {node.condition} and its lease has ended"
    for app in state.apps.values():
        if not 1 <= app.n_min <= app.n_max or app.weight <= 0 or not app.demand:
            yield f"{app.id}: bounds {app.n_min}..{app.n_max}, weight {app.weight}, demand {app.demand}"
        if (
            app.changed_seq > state.seq
            or min(app.step, app.lost_steps, app.failures, app.ran_ns, app.failed_trials) < 0
        ):
            yield f"{app.id}: {app.failures} failures, step {app.step}, {app.lost_steps} lost steps, ran {app.ran_ns} ns"
        for against, used in app.retries_used.items():
            if used > limit_of(app, against):
                yield f"{app.id}: {used} of {limit_of(app, against)} retries for {against} are used up"
        if bool(app.ended) != bool(app.ended_at) or (app.ended and (app.waiting or app.retry_at or app.waiting_since)):
            yield f"{app.id}: ended and still waiting, or ended at no time"
        current = app.current
        held_back = app.waiting is not None and app.waiting.code == HELD_BACK
        if not app.ended and current is None and not app.waiting_since and not held_back:
            yield f"{app.id}: has no place, but nobody noted since when it waits"
        if app.waiting_since and current is not None and current.released:
            yield f"{app.id}: has a place and waits since {app.waiting_since}"
    if not state.next_drop_at <= 0 and not any(app.ended for app in state.apps.values()):
        yield "an app is to leave the state, and none has ended"
