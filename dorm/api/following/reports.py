"""The resource use that nodes last reported for their containers, read from their heartbeats on request.

Heartbeats are not part of the log: the server keeps them for a short time, so only the present has them.  CPU time is counted
from a container's start, so cores in use follow from two reports.  The report before is kept for each node that was asked
about; if there is none yet, the mean since the container's start stands in.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from events import subjects
from events.codec import decode
from events.kinds import NodeReported
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from events.log.interface import Bus

_MOST = 4096
"""Nodes of which a report is kept."""
_LEAST_S = 0.5
"""Two reports that are closer together say little about a rate."""

Key = tuple[str, int, int]
"""App, generation and slot."""


class Used(msgspec.Struct, frozen=True):
    """What a container uses."""

    app: str
    generation: int
    slot: int
    cpu: int | None
    """Milli-cores; None if that is not known yet."""
    over_s: float | None
    """The length of time that this is a mean over."""
    memory: int
    """Bytes resident."""


class Report(msgspec.Struct, frozen=True):
    """A node's last heartbeat."""

    time: int
    """When it was stored (UTC ns)."""
    measured: bool
    """False if the node's engine did not say in time what its containers use."""
    containers: list[Used]


class Reports:
    """Reads heartbeats of one cluster."""

    def __init__(self, bus: Bus, cluster: str) -> None:
        self._bus = bus
        self._cluster = cluster
        self._kept: OrderedDict[str, list[tuple[int, NodeReported]]] = OrderedDict()
        """The last two reports of each node, at most."""

    async def of(self, node: str, identity: str, started: Mapping[Key, int]) -> Report | None:
        """Return the last report of the machine that holds a node's name, None if there is none.  `started` is when each
        container started (UTC ns).  Raises what `Bus.last_report` raises."""
        record = await self._bus.last_report(subjects.report(self._cluster, node))
        event = decode(record) if record is not None else None
        if record is None or not isinstance(event, NodeReported) or event.identity != identity:
            return None
        kept = self._kept.setdefault(node, [])
        self._kept.move_to_end(node)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        if not kept or record.time - kept[-1][0] >= _LEAST_S * SECOND:
            kept.append((record.time, event))
            del kept[:-2]
        before = kept[-2] if len(kept) > 1 else None
        return _report(record.time, event, before, started)


def _report(
    time: int, event: NodeReported, before: tuple[int, NodeReported] | None, started: Mapping[Key, int]
) -> Report:
    earlier = (
        {(one.app, one.generation, one.slot): one.cpu_s for one in before[1].containers} if before is not None else {}
    )
    found = []
    for one in event.containers:
        key = (one.app, one.generation, one.slot)
        since, spent_s = started.get(key, 0), one.cpu_s
        if before is not None and key in earlier and earlier[key] <= one.cpu_s:
            since, spent_s = before[0], one.cpu_s - earlier[key]
        over_s = (time - since) / SECOND if since else 0.0
        known = over_s >= _LEAST_S
        cpu = round(spent_s / over_s * 1000) if known else None
        found.append(Used(*key, cpu, round(over_s, 3) if known else None, one.memory))
    return Report(time, "memory" in event.used, found)
