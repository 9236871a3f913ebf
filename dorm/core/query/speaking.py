"""Synthetic agent events: what-if and simulations publish an agent's facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from events import kinds as k

if TYPE_CHECKING:
    from dorm.core.state import State

E = TypeVar("E", bound=k.Event)
_OF_MACHINES = (k.NodeJoined, k.NodeLeft, k.ContainerStarted, k.ContainerExited)


def as_holder(state: State, event: E) -> E:
    """Return `event` with the identity of the machine that holds the node's name, so the fold accepts it."""
    if not isinstance(event, _OF_MACHINES):
        return event
    node = state.nodes.get(event.node)
    if node is None or event.identity == node.identity:
        return event
    return msgspec.structs.replace(event, identity=node.identity)
