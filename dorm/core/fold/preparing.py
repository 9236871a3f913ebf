"""The fold of the nodes' preparations for a generation while the previous one works on (`Resize.prepare_s`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.folded import Folded, ignored
from events import subjects
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.state import Generation, State
    from events import kinds as k
    from events.log.records import Record


def begin_preparing(generation: Generation, change: k.Resize, now: int) -> None:
    """Note which nodes the previous generation waits for while it works on, and until when; `now` is log time (UTC
    ns)."""
    if change.prepare_s:
        generation.prepare_until = now + int(change.prepare_s * SECOND)
        generation.preparing = sorted({placed.node for placed in change.placement})


def containers_prepared(state: State, event: k.ContainersPrepared, record: Record) -> Folded:
    """A node has prepared its part: once all have, agents stop the generation before."""
    app, node = state.apps.get(event.app), state.nodes.get(event.node)
    generation = app.generations.get(event.generation) if app is not None else None
    own = subjects.who_of(record.subject) == subjects.token(event.node)
    if not own or generation is None or node is None or node.identity != event.identity:
        return ignored(state)
    if event.node not in generation.preparing:
        return ignored(state)
    generation.preparing = [name for name in generation.preparing if name != event.node]
    if not generation.preparing:
        generation.prepared_at = state.time
    return "applied"
