"""Consequences of a fact beyond itself, for every part of the fold: ended containers, void plans, dropped apps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.apps.bounds import has_worked, settles_until
from dorm.core.state import MOST
from events.limits import clipped

if TYPE_CHECKING:
    from dorm.core.state import App, Container, Generation, Node, State


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
    """The app lost its partition through no fault of its own: it comes back before apps that never ran
    (`dorm.core.apps.claims`)."""
    app.interrupted_at = app.interrupted_at or state.time


def void_plans_on(state: State, node: Node) -> None:
    """The node is not what decisions assumed.  Decisions in progress are overtaken; placements there that are not released yet
    are void, so their apps are placed again instead of waiting for room that never becomes free."""
    node.changed_seq = state.seq
    for app in state.apps.values():
        generation = app.generations.get(app.generation)
        if generation and not generation.released and any(c.node == node.id for c in generation.containers.values()):
            generation.void = True
            if not app.waiting_since and not app.ended:  # It ran until now.
                interrupt(state, app)
            mark_wait(state, app)
    mark_dirty(state)


def end_containers_on(state: State, node: str, message: str) -> None:
    """Mark every container that was released to this node as exited."""
    # Most apps of a long log have ended; sorting all of them would dominate the cost.
    for name in sorted(name for name, app in state.apps.items() if _has_some_left(app)):
        app = state.apps[name]
        for number in sorted(app.generations):
            generation = app.generations[number]
            for container in generation.containers.values():
                if container.node == node and container.state != "exited" and generation.released:
                    end_container(state, app, generation, container, "lost", message)
        if app.ended:
            forget_ended(app)


def _has_some_left(app: App) -> bool:
    """Return whether a container of it may run, or whether, if it has ended, there is something to forget."""
    generations = app.generations
    if len(generations) > 1 or app.generation not in generations:
        return True
    for generation in generations.values():
        if generation.released_at and generation.exited < len(generation.containers):
            return True
    return False


def end_container(
    state: State, app: App, generation: Generation, container: Container, reason: str, message: str
) -> None:
    """Mark a container as exited.  If the exit was not requested, it overtakes decisions in progress about its app."""
    if generation.started_at and not generation.exited and not generation.failed:
        if has_worked(app, generation, state.time):
            note_work(state, app, generation)
        ran = app.ran_ns + state.time - generation.started_at
        app.ran_ns = ran if ran < MOST else MOST
    if container.state == "running":
        generation.running -= 1
        served = app.served_ns + state.time - container.started_at
        app.served_ns = served if served < MOST else MOST
    generation.exited += 1
    container.state, container.exited_at = "exited", state.time
    container.reason, container.message = reason, clipped(message)
    if not container.asked:
        app.changed_seq = state.seq
    if generation.ended:
        generation.stopped_at = state.time
        plan_drop(state, app)
    mark_dirty(state)


def note_work(state: State, app: App, generation: Generation) -> None:
    """Note that the generation has worked, so its app is no longer on trial, and may be resized again."""
    settled = bool(settles_until(app, state.time))
    generation.worked = True
    app.worked_with = len(generation.containers)
    if app.failed_trials or settled:
        app.failed_trials = 0
        mark_dirty(state)


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
    return app.ended_at + int(state.settings.retention_s * 1e9)
