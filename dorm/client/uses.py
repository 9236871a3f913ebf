"""What running containers have used until now, by their nodes' last heartbeats."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from events import subjects
from events.codec import decode
from events.kinds import ContainerUse, NodeReported

if TYPE_CHECKING:
    from dorm.core.state import Node, State
    from events.log.interface import Bus

_AT_ONCE = 16
"""Nodes whose heartbeats are read at a time."""

Key = tuple[str, int, int]
"""App, generation and slot."""


async def last_uses(bus: Bus, cluster: str, state: State) -> dict[Key, ContainerUse]:
    """Return the last known use of each container, of all nodes that are up.  Raises what `Bus.last_report` raises."""
    found: dict[Key, ContainerUse] = {}
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(node: Node) -> None:
        async with room:
            record = await bus.last_report(subjects.report(cluster, node.id))
        event = decode(record) if record is not None else None
        if isinstance(event, NodeReported) and event.identity == node.identity:
            found.update({(one.app, one.generation, one.slot): one for one in event.containers})

    async with asyncio.TaskGroup() as asking:
        for node in state.nodes.values():
            if node.condition == "up":
                asking.create_task(ask(node))
    return found
