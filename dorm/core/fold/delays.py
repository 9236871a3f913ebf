"""The fold of what nodes do for containers again and again (`ContainerDelayed`): kept for people, and decides nothing.

A container has one delay at a time, the last one stated, until it is over or the container has started or ended; so the
state grows by no more than one text for each container.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from dorm.core.folded import Folded, ignored
from dorm.core.generation import Delay
from events import subjects
from events.limits import clipped
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.state import Container, Generation, State
    from events import kinds as k
    from events.log.records import Record

_OF_RUNNING = ("tell", "stop", "report")
"""What is done for a container that runs."""


def container_delayed(state: State, event: k.ContainerDelayed, record: Record) -> Folded:
    """Note or drop the delay of a container on this node, also of one that is prepared before its release."""
    app, node = state.apps.get(event.app), state.nodes.get(event.node)
    generation = app.generations.get(event.generation) if app is not None else None
    own = subjects.who_of(record.subject) == subjects.token(event.node)
    if not own or generation is None or node is None or node.identity != event.identity:
        return ignored(state)
    container = _find(generation, event.slot)
    if container is None or container.node != event.node:
        return ignored(state)
    if container.state == "exited" or (container.state == "running" and event.doing not in _OF_RUNNING):
        return "applied"  # It is for those who read the log.
    if event.over:
        container.delay = UNSET
    else:
        since = max(0, state.time - int(event.for_s * SECOND))
        container.delay = Delay(event.doing, clipped(event.reason), since, event.failing)
    return "applied"


def _find(generation: Generation, slot: int) -> Container | None:
    found = generation.find(slot)
    if found is None and generation.change is not None:
        return generation.change.newcomers.get(slot)
    return found
