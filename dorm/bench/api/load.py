"""The load on a master: heartbeats of nodes, apps that are submitted and cancelled, reports of progress.

A round's time is the log's own: from the moment a submission is stored until the round that answers it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

from dorm.core.admission import app_id
from events import subjects
from events.codec import decode, encode
from events.kinds import (
    AppAccepted,
    AppCancelRequested,
    AppProgressed,
    AppSubmitted,
    NodeJoined,
    NodeReported,
    Round,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.kinds import Event
    from events.nats.connection import Connection

_CAPACITY = {"cpu": 16_000, "memory": 64 * 2**30}
_BEAT_S = 2.0
_APP_EVERY = 10
"""One in this many events is a submission."""
_ALIVE = 20
"""Apps that exist at the same time."""


class Load:
    """Events at a rate, on one log."""

    def __init__(self, connection: Connection, nodes: int, events_per_s: float) -> None:
        self._connection = connection
        self._nodes = [f"node-{number + 1:03}" for number in range(nodes)]
        self._pause_s = 1 / events_per_s
        self._apps: list[str] = []
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish for the length of the block."""
        for number, node in enumerate(self._nodes):
            ports = (20_000 + 10 * number, 20_009 + 10 * number)
            await self._append(NodeJoined(node=node, address="127.0.0.1", capacity=_CAPACITY, ports=ports), node)
        tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._publish())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _append(self, event: Event, who: str) -> int:
        subject = subjects.fact(self._connection.cluster, type(event).__name__, who)
        return (await self._connection.log.append(subject, encode(event), msg_id=event.id)).seq

    async def _beat(self) -> None:
        while True:
            for node in self._nodes:
                subject = subjects.report(self._connection.cluster, node)
                await self._connection.bus.publish_report(subject, encode(NodeReported(node=node)))
            await asyncio.sleep(_BEAT_S)

    async def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for number in self._numbers:
                tasks.create_task(self._one(number))
                due += self._pause_s
                await asyncio.sleep(max(0.0, due - loop.time()))

    async def _one(self, number: int) -> None:
        if number % _APP_EVERY:
            app = self._apps[number % len(self._apps)] if self._apps else "none"
            node = self._nodes[number % len(self._nodes)]
            await self._append(AppProgressed(app=app, generation=1, step=number, samples_per_s=1.0), node)
            return
        spec: dict[str, Any] = {"name": f"load-{number}", "command": ["work"], "demand": {"cpu": 4}, "n_max": 4}
        id = f"load.{number}"
        await self._append(AppSubmitted(id=id, spec=spec), "load")
        self._apps.append(app_id(spec["name"], id))
        if len(self._apps) > _ALIVE:
            await self._append(AppCancelRequested(app=self._apps.pop(0)), "load")


async def round_times(connection: Connection, after: int) -> list[float]:
    """Return how long each submission of the load after a record waited for the round that answered it, in seconds."""
    submitted: dict[str, int] = {}
    times: list[float] = []
    async with contextlib.aclosing(connection.log.read(after=after)) as batches:
        async for batch in batches:
            for record in batch:
                event = decode(record)
                if isinstance(event, AppSubmitted) and event.by == "load":
                    submitted[event.id] = record.time
                times += [
                    (record.time - begun) / 1e9
                    for fact in (event.events if isinstance(event, Round) else ())
                    if isinstance(fact, AppAccepted) and (begun := submitted.pop(fact.submission, 0))
                ]
    return times
