"""The life of containers on the log: how each starts and ends, and what the work of its generation shows.

A container is a place that the master decided (`desired`), then what a node reports (`running`, `exited`).  Four
invariants hold:

    final      an exited container stays exited.  Reports about it are ignored, so a late or repeated report changes
               nothing
    possible   a container of a released generation may run until the log has its end: from its node, or from the master
               once the node has left or its lease has certainly ended.  A silent node ends nothing, for unreachable is
               not dead; room that such a container holds is given to nobody else
    counted    a generation counts its members by state (`running`, `exited`), because each start and each end needs
               these numbers; `container_started`, `end_container` and `dorm.core.effects.adjust_counts` are the only
               writers
    believed   a report counts if it is of the machine that holds the node's name, about a container that was placed
               there and released.  Any other changes nothing

An end that nobody asked for overtakes decisions in progress about its app (`App.changed_seq`): they were made for an
app that was complete.  An end that was asked for is what such a decision waits for, so it overtakes nothing; the end of
a member that leaves a live app is part of its change.

A generation has worked once it reports progress, or has run for long enough without (`dorm.core.sizes`).  From then on
its app is no longer on trial, its nodes are known to run it well (`dorm.core.faults`), and it may be resized again.
How long its containers ran and how fast they worked is added up when the first or the last of them ends; afterwards the
members are others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dorm.core.authority import is_own
from dorm.core.costs import point_of, with_point
from dorm.core.deadlines import note_ended, note_started
from dorm.core.effects import forget_ended, mark_dirty, plan_drop
from dorm.core.faults import note_brief_run, note_ran_well, ran_well
from dorm.core.folded import APP, IGNORED, Effect, ignored
from dorm.core.generation import Mark
from dorm.core.sizes import has_worked, settles_until
from dorm.core.state import MOST, Doubted
from events import kinds as k
from events.limits import clipped

if TYPE_CHECKING:
    from dorm.core.state import App, Container, Generation, State
    from events.log.records import Record


# --- the fold of reports ---------------------------------------------------------------------------------------------


def _container_of(state: State, event: Any, record: Record) -> tuple[App, Generation, Container] | None:
    """Return the container of an agent's report: a released container of its own node, reported by the machine that
    holds the node's name."""
    if not is_own(state, event, record):
        return None
    node = state.nodes.get(event.node)
    if node is not None and event.identity != node.identity:
        ignored(state)
        return None
    try:
        app = state.apps[event.app]
        generation = app.generations[event.generation]
    except KeyError:
        ignored(state)
        return None
    container = generation.find(event.slot)
    if container is None or not generation.released_at or container.node != event.node:
        ignored(state)
        return None
    return app, generation, container


def container_started(state: State, event: k.ContainerStarted, record: Record) -> Effect:
    reported = _container_of(state, event, record)
    if reported is None:
        return IGNORED
    app, generation, container = reported
    if container.state != "desired":
        return ignored(state)
    container.state, container.started_at, container.delay = "running", state.time, None
    app.origin_digest = event.origin_digest or app.origin_digest
    note_doubt(app, event)
    if app.run_time is not None:
        note_started(app, state.time)
    if event.environment_s and not (
        generation.environment_s is not None and event.environment_s <= generation.environment_s
    ):
        generation.environment_s = event.environment_s
    if generation.containers.get(event.slot) is not container:
        return APP
    generation.running += 1
    if generation.running == len(generation.containers):
        if not generation.started_at:
            generation.started_at = state.time
            if app.history and app.history[-1].to_generation == generation.number:
                app.history[-1].started_at = state.time
        mark_dirty(state)
    return APP


def container_exited(state: State, event: k.ContainerExited, record: Record) -> Effect:
    reported = _container_of(state, event, record)
    if reported is None:
        return IGNORED
    app, generation, container = reported
    if container.state == "exited":
        return ignored(state)
    container.exit_code, container.asked, container.killed = event.exit_code, event.asked, event.killed
    app.origin_digest = event.origin_digest or app.origin_digest
    note_doubt(app, event)
    if container.started_at == 0 and event.started_at:
        container.started_at = state.time
    note_brief_run(state, container, event)
    if event.peer_lost and event.slot not in generation.accused:  # Else its peers lost it first.
        container.peer_lost = True
    end_container(state, app, generation, container, event.reason, event.message)
    if app.ended:
        forget_ended(app)
    return APP


def note_doubt(app: App, event: k.ContainerStarted | k.ContainerExited) -> None:
    """Note that files of the app's last checkpoint changed after it was reported, as far as a report of one counts.  Nodes
    look at no files after a container that was done: what its exit names was found before its start, which may not have
    been reported."""
    if event.doubt is None or app.checkpoint is None:
        return
    how: Literal["killed", "ended", "found"] = "found"
    if isinstance(event, k.ContainerExited) and (event.exit_code != 0 or event.asked):
        how = "killed" if event.killed else "ended"
    elif app.doubt is not None and not app.doubt.what.aside:  # The node of the container that ended said how.
        app.doubt = msgspec.structs.replace(app.doubt, what=event.doubt)
        return
    app.doubt = Doubted(event.generation, event.slot, how, event.doubt)


# --- ends and work ------------------------------------------------------------------------------------------------------


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
        late = container.brief_ns is not None
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
    container.reason, container.message, container.delay = reason, clipped(message), None
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
