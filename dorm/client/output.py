"""The output of an app's containers, asked of the agents that run them."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import msgspec

from dorm.client.errors import NotFound
from events import subjects
from events.log.records import LogUnavailable
from events.requests import LogQuestion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from dorm.core.state import App, Generation
    from events.log.interface import Bus
    from events.nats.connection import Connection

_AGENT_BACK_S = 15.0
"""Seconds that an agent may take to answer again after an outage."""
_PAUSE_S = 0.2


def started(app: App) -> list[Generation]:
    """Return the generations of which a container has started, and that the state still knows."""
    return [g for g in app.generations.values() if any(c.state != "desired" for c in g.containers.values())]


def container_of(app: App, slot: int | None, number: int | None = None) -> tuple[Generation, int]:
    """Return the generation with this number (the latest that started without one), and the slot to read: the first one
    unless `slot` is given.

    Raises NotFound where nothing has started yet, and for a slot that it has not."""
    found = [g for g in started(app) if number in (None, g.number)]
    if not found:
        why = f": {app.waiting.text}" if app.waiting else ""
        raise NotFound(f"{app.name} has not started yet ({app.phase}){why}", code="app.not_started")
    generation = max(found, key=lambda g: g.number)
    wanted = min(generation.containers) if slot is None else slot
    if wanted not in generation.containers:
        raise NotFound(
            f"{app.name} has no slot {wanted}; it has {', '.join(map(str, sorted(generation.containers)))}",
            code="slot.not_found",
        )
    return generation, wanted


class Output:
    """How output is asked for.  `outages` returns how often the connection was lost so far."""

    def __init__(self, bus: Bus, cluster: str, connection: Connection | None, outages: Callable[[], int]) -> None:
        self._bus = bus
        self._cluster = cluster
        self._connection = connection
        self._outages = outages

    async def read(
        self, app: App, *, slot: int | None, follow: bool, tail: int | None, generation: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the output of one container, as `Client.logs` says."""
        chosen, wanted = container_of(app, slot, generation)
        question = LogQuestion(app=app.id, generation=chosen.number, slot=wanted, follow=follow, tail=tail)
        tenant = app.tenant if self._bus.guarded else ""
        subject = subjects.ask(self._cluster, chosen.containers[wanted].node, "logs", tenant)
        taken = skip = outages = 0
        patience = 0.0
        while True:
            try:
                async for piece in self._bus.ask(subject, msgspec.json.encode(question)):
                    patience = 0.0
                    if len(piece) > skip:
                        yield piece[skip:]
                        taken += len(piece) - skip
                    skip -= min(skip, len(piece))
            except LogUnavailable:
                now = asyncio.get_running_loop().time()
                if self._outages() > outages:
                    outages, patience = self._outages(), math.inf
                if not follow or now > patience or self._connection is None:
                    raise
                await self._connection.connected()
                # The agent has to reconnect too.
                patience = min(patience, asyncio.get_running_loop().time() + _AGENT_BACK_S)
                await asyncio.sleep(_PAUSE_S)
            else:
                return
            if tail is None:
                skip = taken
            else:
                question = msgspec.structs.replace(question, tail=0)
