"""A node's heartbeat, with the resource use of its containers if the engine reports it in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from agents.runtime.interface import Unavailable
from events import subjects
from events.codec import encode
from events.kinds import ContainerUse, NodeReported
from events.limits import LARGEST_FACTS
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agents.identity import Identity
    from agents.reporting.usage import Usage
    from agents.runtime.interface import Key, Runtime, Seen
    from events.log.interface import Bus

FIGURES_S = 1.0
"""Seconds that reading usage may take.  A slow or hanging engine must not make its node silent."""
_AT_ONCE = 16
"""Containers whose figures are read at a time."""


class Heartbeat:
    """The heartbeats of one node; `clock` returns UTC ns, `since_boot` seconds of an unsettable clock that includes sleep."""

    def __init__(
        self,
        bus: Bus,
        cluster: str,
        node: str,
        runtime: Runtime,
        *,
        clock: Callable[[], int],
        since_boot: Callable[[], float],
        identity: Identity,
        usage: Usage,
    ) -> None:
        self._bus = bus
        self._subject = subjects.report(cluster, node)
        self._node = node
        self._runtime = runtime
        self._clock = clock
        self._since_boot = since_boot
        self._identity = identity
        self._usage = usage

    async def send(self, seen: Sequence[Seen], timeout: float) -> float:
        """Store a heartbeat within `timeout` seconds.  Return the time (`since_boot`) just before it was sent, from which the
        lease counts.  `seen` are the node's containers.  Raises LogUnavailable, LogRefused."""
        uses, complete = await self._uses(seen)
        at = self._clock()
        self._usage.note(seen, uses, int(self._since_boot() * SECOND), at)
        report = NodeReported(
            id=f"{self._node}.report.{at}",
            at=at,
            by=self._node,
            node=self._node,
            used={"memory": sum(use.memory for use in uses)} if complete else {},
            containers=uses,
            identity=self._identity.value,
        )
        body = encode(report)
        if len(body) > LARGEST_FACTS:  # A node must not be silent because its report is large.
            body = encode(msgspec.structs.replace(report, containers=[]))
        sent_at = self._since_boot()
        await self._bus.publish_report(self._subject, body, timeout=timeout)
        return sent_at

    async def _uses(self, seen: Sequence[Seen]) -> tuple[list[ContainerUse], bool]:
        """Return the use of each running container whose figures came in time, and whether none is missing: only then does the
        heartbeat name the node's sum (`used`), so a partial list does not look complete."""
        running = [container.key for container in seen if container.state == "running"]
        uses: dict[Key, ContainerUse] = {}
        missing = False
        room = asyncio.Semaphore(_AT_ONCE)

        async def ask(key: Key) -> None:
            nonlocal missing
            try:
                async with room:
                    use = await self._runtime.use(key)
            except (OSError, Unavailable):
                missing = True
            else:
                if use is not None:
                    app, generation, slot = key
                    uses[key] = ContainerUse(
                        app=app, generation=generation, slot=slot, cpu_s=use.cpu_s, memory=use.memory
                    )

        try:
            async with asyncio.timeout(FIGURES_S), asyncio.TaskGroup() as asking:
                for key in running:
                    asking.create_task(ask(key))
        except TimeoutError:
            missing = True
        return [uses[key] for key in running if key in uses], not missing
