"""What is next to the log, as clients see it: the newest progress of each app, now and as it changes, and what running
containers have used until now, by their nodes' last heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from dorm.core.progress import newest_of
from events import subjects
from events.codec import decode
from events.kinds import ContainerUse, NodeReported
from events.log.records import LogRefused, LogUnavailable
from events.log.stores import EVERY_APP

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from dorm.core.progress import Newest
    from dorm.core.state import Node, State
    from events.log.interface import Bus, ReadableLog

# --- progress ---------------------------------------------------------------------------------------------------------

_PATIENCE_S = 3.0


async def newest(log: ReadableLog, app: str = EVERY_APP) -> Newest:
    """Return the newest report of each app, or of one by its id.  Empty if the stream can't be read: then the log's marks
    are the newest, about a minute old at most."""
    with contextlib.suppress(LogUnavailable, LogRefused, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            return newest_of(await log.progress.newest(app))
    return {}


async def followed(log: ReadableLog) -> AsyncGenerator[Newest, None]:
    """Yield the newest reports, first as they are now and then with each further one, until the connection is closed; end at
    once if the stream can't be read."""
    with contextlib.suppress(LogUnavailable, LogRefused):
        end, reports = await log.progress.end(), await newest(log)
        yield reports
        async with contextlib.aclosing(log.progress.read(after=end, follow=True)) as batches:
            async for batch in batches:
                reports = reports | newest_of(batch)
                yield reports


# --- resources in use -------------------------------------------------------------------------------------------------

_AT_ONCE = 16
"""Nodes whose heartbeats are read at a time."""

Key = tuple[str, int, int]
"""App, generation and slot."""


async def last_uses(bus: Bus, cluster: str, state: State) -> dict[Key, ContainerUse]:
    """Return the last known use of each container, of all nodes that are up.  Raises what `Bus.last_report` raises."""
    uses: dict[Key, ContainerUse] = {}
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(node: Node) -> None:
        async with room:
            record = await bus.last_report(subjects.report(cluster, node.id))
        event = decode(record) if record is not None else None
        if isinstance(event, NodeReported) and event.identity == node.identity:
            uses.update(
                {(container.app, container.generation, container.slot): container for container in event.containers}
            )

    async with asyncio.TaskGroup() as asking:
        for node in state.nodes.values():
            if node.condition == "up":
                asking.create_task(ask(node))
    return uses
