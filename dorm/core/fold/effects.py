"""Consequences of a fact beyond itself, for every part of the fold: ended containers, void plans, dropped apps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from dorm.core.apps.bounds import has_worked, settles_until
from dorm.core.apps.faults import note_ran_well, ran_well
from dorm.core.apps.gating.limits import note_ended
from dorm.core.apps.speeds import point_of, with_point
from dorm.core.generation import Mark
from dorm.core.settings import kept_until
from dorm.core.state import MOST
from events.limits import clipped

if TYPE_CHECKING:
    from dorm.core.state import App, Container, Generation, Node, State
    from events.kinds import Resized


SWEEPS = 16
"""How often ended apps are scanned within one retention."""


def mark_dirty(state: State) -> None:
    """Note an event that could change the allocation."""
    state.dirty_seq, state.dirty_at = state.seq, state.time


def request_rebalance(state: State) -> None:
    """θ2 may prevent one round from using all freed capacity: an idle tick computes the allocation again once the log is quiet
    (`dorm.core.decide.timing`)."""
    state.rebalance_from = state.time


def mark_wait(state: State, app: App) -> None:
    """Note since when the app waits, after a change that may have taken its place away."""
    if not app.waiting_since and not app.ended and app.current is None:
        app.waiting_since = max(state.time, app.retry_at)


def interrupt(state: State, app: App) -> None:
    """The app lost its partition without its own fault: it comes back before apps that never ran
    (`dorm.core.apps.claims`)."""
    app.interrupted_at = app.interrupted_at or state.time


def void_plans_on(state: State, node: Node) -> None:
    """The node is not what decisions assumed.  Decisions in progress are overtaken; placements there that are not released yet
    are void, so their apps are placed again instead of waiting for room that never becomes free."""
    void_plans(state, [node.id])


def drop_change(state: State, app: App, generation: Generation) -> None:
    """Drop a live adjustment that was not released. Plans on the nodes that its members were to leave may count on
    that room, so they are void as well: otherwise they would wait for room that is never freed."""
    void_plans(state, _dropped(generation))


def _dropped(generation: Generation) -> list[str]:
    """Return the nodes on which its members stay after all."""
    change, generation.change = generation.change, None
    stay = change.stay if change is not None else []
    return [one.node for slot, one in sorted(generation.containers.items()) if slot not in stay]


def void_plans(state: State, nodes: list[str]) -> None:
    """Void all plans on these nodes, and on the nodes whose room those plans would have given up in turn. Empties
    `nodes`."""
    seen: dict[str, None] = {}
    while nodes:
        name = nodes.pop(0)
        if name in seen or name not in state.nodes:
            continue
        seen[name] = None
        state.nodes[name].changed_seq = state.seq
        for app in state.apps.values():
            generation = app.generations.get(app.generation)
            if generation is None:
                continue
            change = generation.change
            if change and not change.released_at and any(c.node == name for c in change.newcomers.values()):
                nodes += _dropped(generation)
            if not generation.released and any(c.node == name for c in generation.containers.values()):
                generation.void = True
                if not app.waiting_since and not app.ended:  # It ran until now.
                    interrupt(state, app)
                mark_wait(state, app)
    mark_dirty(state)


def dissolve(generation: Generation) -> None:
    """The generation ends: no members join it any more, and released new members are stopped with the rest."""
    change, generation.change = generation.change, None
    generation.untold, generation.accused = 0, []
    if change is not None and change.released_at:
        generation.leaving |= {slot: one for slot, one in change.newcomers.items() if one.state != "exited"}


def adjust_counts(generation: Generation) -> None:
    """Count its members by state again."""
    states = [container.state for container in generation.containers.values()]
    generation.running, generation.exited = states.count("running"), states.count("exited")


def end_containers_on(state: State, node: str, message: str) -> None:
    """Mark every container that was released to this node as exited."""
    # Most apps of a long log have ended; sorting all of them would dominate the cost.
    for name in sorted(name for name, app in state.apps.items() if _anything_left(app)):
        app = state.apps[name]
        for number in sorted(app.generations):
            generation = app.generations[number]
            for container in list(generation.all_containers()):
                if container.node == node and container.state != "exited" and generation.released:
                    end_container(state, app, generation, container, "lost", message)
        if app.ended:
            forget_ended(app)


def _anything_left(app: App) -> bool:
    """Return whether a container of it may run, or whether, if it has ended, there is something to forget."""
    generations = app.generations
    if len(generations) > 1 or app.generation not in generations:
        return True
    return any(not generation.ended for generation in generations.values())


def end_container(
    state: State, app: App, generation: Generation, container: Container, reason: str, message: str
) -> None:
    """Mark a container as exited.  If the exit was not requested, it overtakes decisions in progress about its app."""
    member = generation.containers.get(container.slot) is container
    if member:
        late = isinstance(container.brief_ns, int)
        note_ran(state, app, generation, container.started_at + container.ran_ns if late else state.time)
        generation.exited += 1
        if container.slot in generation.accused:
            generation.accused = [slot for slot in generation.accused if slot != container.slot]
    if container.state == "running":
        generation.running -= member
        served = app.served_ns + state.time - container.started_at
        app.served_ns = served if served < MOST else MOST
        node = state.nodes.get(container.node)
        if node is not None and node.type:
            served = app.served_on.get(node.type, 0) + state.time - container.started_at
            app.served_on[node.type] = served if served < MOST else MOST
    leaves = generation.leaving.get(container.slot) is container
    if leaves:
        del generation.leaving[container.slot]
    container.state, container.exited_at = "exited", state.time
    container.reason, container.message, container.delay = reason, clipped(message), UNSET
    if ran_well(container):
        note_ran_well(state, app, container)
    if not container.asked and not leaves:
        app.changed_seq = state.seq
    if generation.ended:
        generation.stopped_at = state.time
        note_ended(app, state.time)
        note_speed(state, app, generation)
        plan_drop(state, app)
    mark_dirty(state)


def note_ran(state: State, app: App, generation: Generation, until: int) -> None:
    """Add up how long all its members have run, at the first end of one, which was at `until` (UTC ns)."""
    if generation.started_at and not generation.exited and not generation.failed:
        if has_worked(app, generation, until):
            note_work(state, app, generation)
        ran = app.ran_ns + max(until, generation.started_at) - generation.started_at
        app.ran_ns = ran if ran < MOST else MOST


def note_work(state: State, app: App, generation: Generation) -> None:
    """Note that the generation has worked, so its app is no longer on trial, and may be resized again."""
    settled = bool(settles_until(app, state.time))
    generation.worked = True
    for container in generation.containers.values():
        if container.started_at:
            note_ran_well(state, app, container)
    app.worked_with = len(generation.containers)
    if app.failed_trials or settled:
        app.failed_trials = 0
        mark_dirty(state)


def note_speed(state: State, app: App, generation: Generation) -> None:
    """Remember how fast its members have worked; later reports are about other members."""
    point, pace = point_of(state, generation), generation.pace
    if point is not None and app.needs(generation) is app.demand:
        app.speeds = with_point(app.speeds, point)
    if pace is not None:
        generation.same_since = Mark(pace.last_at, pace.last_step)


def note_resumed(state: State, app: App, generation: int, step: int) -> None:
    """The first sign of work after an adjustment ends its pause."""
    last = app.history[-1] if app.history else None
    if last is not None and not last.resumed_at and last.to_generation == generation:
        last.resumed_at, last.resumed_step = state.time, step


def forget_ended(app: App) -> None:
    """Drop earlier generations that have ended; the latest one is kept for inspection."""
    if len(app.generations) > 1:
        for number in [n for n, g in app.generations.items() if n != app.generation and g.ended]:
            del app.generations[number]


def plan_drop(state: State, app: App) -> None:
    """Schedule the drop of an ended app after the retention, but never while something of it may still take room."""
    due = _drop_at(state, app)
    if due:
        state.next_drop_at = min(state.next_drop_at or due, due)


def plan_drops(state: State) -> None:
    """Schedule the next drop again, after an ended app has resumed."""
    state.next_drop_at = min((due for app in state.apps.values() if (due := _drop_at(state, app))), default=0)


def drop_ended(state: State) -> None:
    """Drop apps whose retention is over.  One scan of all apps serves many: the next is a part of the retention away, so on a
    long log each app is scanned a few times instead of once for every other app that ends."""
    due = {app.id: _drop_at(state, app) for app in state.apps.values()}
    for name, at in due.items():
        if at and at <= state.time:
            del state.apps[name]
    later = min((at for at in due.values() if at > state.time), default=0)
    state.next_drop_at = later and max(later, state.time + int(state.settings.retention_s * 1e9) // SWEEPS)


def _drop_at(state: State, app: App) -> int:
    if not app.ended:
        return 0
    for generation in app.generations.values():
        if not generation.ended:
            return 0
    return kept_until(state.settings, app)


def note_figures(state: State, event: Resized) -> None:
    """Note the figures of a decision, for views."""
    figures = state.figures
    figures.seq = state.seq
    figures.utilization = event.utilization
    figures.fairness_loss = event.fairness_loss
    figures.overhead = event.overhead
    figures.decisions += 1
