"""A log on a real server, a deliverer on it, and rounds as a master would write them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from dorm.client.client import Client
from dorm.core.evolve import evolve
from dorm.core.state import State
from dorm.webhooks.deliverer import Deliverer
from dorm.webhooks.sending import parse_networks
from dorm.webhooks.webhook_keys import Keys
from events import subjects
from events.codec import encode
from events.kinds import AppSubmitted, Event, MasterElected, NodeJoined, Round
from events.nats.connection import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

SOON = (0.05, 0.05, 0.05)
"""A schedule of attempts for tests."""


class Setting:
    """One cluster's log."""

    def __init__(self, connection: Connection, cluster: str) -> None:
        self.connection = connection
        self.cluster = cluster
        self.keys = Keys(b"k" * 32, cluster)
        self.client = Client(connection.log, connection.bus, cluster, user="tester")
        self.state = State()
        self._said = 0

    async def say(self, event: Event, who: str = "tester") -> int:
        self._said += 1
        stored = await self.connection.log.append(
            subjects.fact(self.cluster, type(event).__name__, who), encode(event), msg_id=f"{who}.{self._said}"
        )
        return stored.seq

    async def fold(self) -> State:
        async for batch in self.connection.log.read(after=self.state.seq):
            for record in batch:
                evolve(self.state, record)
        return self.state

    async def round(self, *facts: Any, epoch: int = 1) -> int:
        state = await self.fold()
        event = Round(
            id=f"m.{self._said}",
            by="m",
            at=time.time_ns(),
            epoch=epoch,
            basis=state.seq,
            allocated=False,
            events=list(facts),
        )
        self._said += 1
        stored = await self.connection.log.append(subjects.rounds(self.cluster), encode(event), msg_id=event.id)
        return stored.seq

    async def begin(self) -> None:
        """A master and a node."""
        await self.round(MasterElected(epoch=1))
        await self.say(NodeJoined(node="n1", address="a", capacity={"cpu": 1000}, ports=(1, 2)), "n1")

    async def submit(self, name: str) -> int:
        return await self.say(AppSubmitted(spec={"name": name, "command": ["x"], "demand": {"cpu": 1}}))

    @contextlib.asynccontextmanager
    async def delivering(
        self, url: str, *, keys: Keys | None = None, schedule_s: Sequence[float] = SOON, allow: Sequence[str] = ("loopback",),
        timeout_s: float = 2.0, again_s: float = 5.0, who: str = "deliverer",
    ) -> AsyncIterator[Deliverer]:  # fmt: skip
        """A deliverer with a connection of its own."""
        connection = await Connection.open(url, self.cluster, name="deliverer")
        deliverer = Deliverer(
            connection,
            keys or self.keys,
            who=who,
            clock=time.time_ns,
            allowed=parse_networks(allow),
            schedule_s=tuple(schedule_s),
            timeout_s=timeout_s,
            again_s=again_s,
        )
        running = asyncio.create_task(deliverer.run())
        try:
            waiting = asyncio.create_task(deliverer.ready.wait())
            await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
            yield deliverer
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await connection.close()


@contextlib.asynccontextmanager
async def setting(url: str, cluster: str) -> AsyncIterator[Setting]:
    connection = await Connection.open(url, cluster, create=True)
    try:
        made = Setting(connection, cluster)
        await made.begin()
        yield made
    finally:
        await connection.close()
