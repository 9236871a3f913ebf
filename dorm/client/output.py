"""The output of an app's containers, asked of the agents that run them."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from dorm.client.errors import NotFound
from dorm.client.finding import no_rank
from dorm.client.tail import Filter, Tail
from dorm.core.app import App
from dorm.core.query.gates import reason_of
from events import subjects
from events.kinds import ContainerExited, ContainerStarted
from events.log.records import LogUnavailable
from events.positions import Position
from events.requests import LogQuestion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from dorm.core.state import Generation
    from events.log.interface import Bus, ReadableLog
    from events.nats.connection import Connection

_AGENT_BACK_S = 15.0
"""Seconds that an agent may take to answer again after an outage."""
_PAUSE_S = 0.2


def started(app: App) -> list[Generation]:
    """Return the generations of which a container has started, and that the state still knows."""
    return [g for g in app.generations.values() if any(c.state != "desired" for c in g.containers.values())]


class Ran(msgspec.Struct, frozen=True):
    """A generation of which containers have started, as far as their output is concerned."""

    app: App
    number: int
    nodes: dict[int, str]
    """By slot: where its container runs or ran."""

    def slot(self, *, slot: int | None = None, rank: int | None = None) -> int:
        """Return the slot to read: this one, or that of this rank, or the first.  A rank is the position of a slot among the
        generation's slots.  Raises NotFound."""
        slots = sorted(self.nodes)
        if rank is not None:
            if rank >= len(slots):
                raise no_rank(self.app, f"generation {self.number} of {self.app.name}", rank, len(slots))
            return slots[rank]
        wanted = slots[0] if slot is None else slot
        if wanted not in self.nodes:
            raise NotFound(
                f"{self.app.name} has no slot {wanted}; it has {', '.join(map(str, slots))}", code="slot.not_found"
            )
        return wanted


def _ran(app: App, generation: Generation) -> Ran:
    return Ran(app, generation.number, {slot: one.node for slot, one in generation.containers.items()})


class Output:
    """How output is asked for.  `outages` returns how often the connection was lost so far."""

    def __init__(
        self, bus: Bus, log: ReadableLog, cluster: str, connection: Connection | None, outages: Callable[[], int]
    ) -> None:
        self._bus = bus
        self._log = log
        self._cluster = cluster
        self._connection = connection
        self._outages = outages

    async def generation(self, app: App, number: int | None = None, *, previous: bool = False) -> Ran:
        """Return the generation with this number, else the latest that started, or the `previous` one before that.

        The state forgets a generation once the next one is released; its nodes then come from the starts and ends of its
        containers, which the log is read for from the app's submission on.  Agents keep the output itself for the retention
        of ended apps.  Raises NotFound where it has not started."""
        known = {generation.number: generation for generation in started(app)}
        latest = max(known, default=0)
        if previous:
            found = await self._earlier(app, 1, (latest or app.generation) - 1)
            if found is None:
                raise NotFound(
                    f"no generation of {app.name} before its {'latest' if latest else 'next'} one has started; leave out "
                    "--previous",
                    code="generation.not_found",
                )
            return found
        if number is None and not latest:
            reason = reason_of(app, time.time_ns())
            because = f": {reason.text}" if reason is not None else ""
            raise NotFound(f"{app.name} has not started yet ({app.phase}){because}", code="app.not_started")
        wanted = latest if number is None else number
        if wanted in known:
            return _ran(app, known[wanted])
        found = await self._earlier(app, wanted, wanted)
        if found is None:
            raise NotFound(
                f"nothing of generation {wanted} of {app.name} has started; its latest is {app.generation}",
                code="generation.not_found",
            )
        return found

    async def _earlier(self, app: App, least: int, most: int) -> Ran | None:
        """Return the latest generation with a number in this range of which a container has started, by the log."""
        if least > most:
            return None
        begin = Position(max(await self._log.start(), app.seq - 1))
        # Of a container that ended at once only the end may be on the log.
        wanted = Filter(kinds=(ContainerStarted.__name__, ContainerExited.__name__), apps=(app.id,))
        number, nodes = 0, dict[int, str]()
        async with aclosing(Tail(self._log, self._cluster, wanted, after=begin).events()) as found:
            async for one in found:
                event = one.event
                if not isinstance(event, ContainerStarted | ContainerExited):
                    continue
                if not max(least, number) <= event.generation <= most:
                    continue
                if event.generation > number:
                    number, nodes = event.generation, {}
                nodes[event.slot] = event.node
        return Ran(app, number, nodes) if nodes else None

    async def read(
        self, app: App, *, slot: int | None, follow: bool, tail: int | None, generation: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the output of one container, as `Client.logs` says."""
        ran = await self.generation(app, generation)
        async for piece in self.read_slot(ran, ran.slot(slot=slot), follow=follow, tail=tail):
            yield piece

    async def read_slot(self, ran: Ran, slot: int, *, follow: bool, tail: int | None) -> AsyncIterator[bytes]:
        """Yield the output of the container in a slot that the generation has."""
        app = ran.app
        question = LogQuestion(app=app.id, generation=ran.number, slot=slot, follow=follow, tail=tail)
        tenant = app.tenant if self._bus.guarded else ""
        subject = subjects.ask(self._cluster, ran.nodes[slot], "logs", tenant)
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
