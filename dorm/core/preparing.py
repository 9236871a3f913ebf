"""Preparation of a restart: the previous generation works on while nodes pull images and create containers for the next
one.

Stopping first would leave the app idle for as long as a pull takes.  So a restart that nothing forces waits until all
its nodes report `ContainersPrepared` (`Resize.prepare_s`, `Generation.preparing`): when the last one has, agents stop
the generation before.  It waits for no node longer than `PREPARE_S`, and does not wait if that costs more than it
gains: if one of the app's own nodes is drained, lost, or without the folder of checkpoints, if a container of it has
ended, or if an agent is too old to report.

A preparation holds nothing.  If it is overtaken, nodes remove what they have created; nothing on the log needs to be
undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.folded import APP, APP_PARTS, Effect, ignored
from events import subjects
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import App, Generation, State
    from events import kinds as k
    from events.kinds import Placed
    from events.log.records import Record


# --- the fold ---------------------------------------------------------------------------------------------------------


def begin_preparing(generation: Generation, change: k.Resize, now: int) -> None:
    """Note which nodes the previous generation waits for while it works on, and until when; `now` is log time (UTC
    ns)."""
    if change.prepare_s:
        generation.prepare_until = now + int(change.prepare_s * SECOND)
        generation.preparing = sorted({placed.node for placed in change.placement})


def prepared_by(app: App) -> list[str]:
    """Return the nodes for which the app's previous generation still waits."""
    latest = app.generations.get(app.generation)
    return latest.preparing if latest is not None else []


def containers_prepared(state: State, event: k.ContainersPrepared, record: Record) -> Effect:
    """A node has prepared its part: once all have, agents stop the generation before."""
    app, node = state.apps.get(event.app), state.nodes.get(event.node)
    generation = app.generations.get(event.generation) if app is not None else None
    own = subjects.who_of(record.subject) == subjects.token(event.node)
    if not own or generation is None or node is None or node.identity != event.identity:
        return ignored(state)
    if event.node not in generation.preparing:
        return ignored(state)
    generation.preparing = [name for name in generation.preparing if name != event.node]
    if generation.preparing:
        return APP
    generation.prepared_at = state.time
    return APP_PARTS  # Only the last node changes what the others do.


# --- decisions --------------------------------------------------------------------------------------------------------

PREPARE_S = 30.0
"""Time that is enough for an image of some gigabytes on a local network, and for most partly cached images; an app that
waits for this one's room waits at most this long."""


def prepare_s(state: State, app: App, placement: Iterable[Placed]) -> float:
    """Return for how many seconds the app's current generation may keep working, 0 if it has to stop at once."""
    current = app.current
    if current is None or not current.released or not current.settled:
        return 0.0
    leaves = [state.nodes.get(container.node) for container in current.containers.values()]
    enters = [state.nodes.get(placed.node) for placed in placement]
    undisturbed = all(node is not None and node.usable for node in leaves)
    reported = bool(enters) and all(node is not None and node.takes_new and node.prepares for node in enters)
    return PREPARE_S if undisturbed and reported else 0.0
