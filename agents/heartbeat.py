"""A node's sign of life, with what its containers use where that can be told in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from agents.runtime.interface import Unavailable
from events import subjects
from events.codec import encode
from events.kinds import ContainerUse, NodeReported
from events.limits import LARGEST_FACTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agents.identity import Identity
    from agents.runtime.interface import Runtime, Seen
    from events.log.interface import Bus

FIGURES_S = 1.0
"""How long figures may take.  An engine that is slow or hangs must not make its node silent."""


class Heartbeat:
    """Of one node; `clock` gives UTC ns, `since_boot` seconds of a clock that nobody sets and that goes on while the machine
    sleeps."""

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
    ) -> None:
        self._bus = bus
        self._subject = subjects.report(cluster, node)
        self._node = node
        self._runtime = runtime
        self._clock = clock
        self._since_boot = since_boot
        self._identity = identity

    async def send(self, seen: Sequence[Seen], timeout: float) -> float:
        """Have one stored, in so many seconds; gives when (`since_boot`), from before it was sent: the lease counts from then.
        `seen` are the node's containers.  Raises LogUnavailable, LogRefused."""
        uses = await self._uses(seen)
        at = self._clock()
        report = NodeReported(
            id=f"{self._node}.report.{at}",
            at=at,
            by=self._node,
            node=self._node,
            used={} if uses is None else {"memory": sum(use.memory for use in uses)},
            containers=uses or [],
            identity=self._identity.value,
        )
        body = encode(report)
        if len(body) > LARGEST_FACTS:  # A node must not be silent for having much to say.
            body = encode(msgspec.structs.replace(report, containers=[]))
        sent_at = self._since_boot()
        await self._bus.publish_report(self._subject, body, timeout=timeout)
        return sent_at

    async def _uses(self, seen: Sequence[Seen]) -> list[ContainerUse] | None:
        """None where the engine does not say it in time: a part of it would be taken for all."""
        uses = []
        try:
            async with asyncio.timeout(FIGURES_S):
                for one in seen:
                    use = await self._runtime.use(one.key) if one.state == "running" else None
                    if use is not None:
                        app, generation, slot = one.key
                        uses.append(
                            ContainerUse(app=app, generation=generation, slot=slot, cpu_s=use.cpu_s, memory=use.memory)
                        )
        except (OSError, Unavailable):
            return None
        return uses
