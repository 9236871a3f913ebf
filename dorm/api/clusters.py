"""What the API serves besides a cluster's whole log.

An archive stands in the place of a cluster: everything can be read, and nothing more happens.  A tenant's cluster is the
real one with the tenant's view of its log, its progress and its heartbeats, so services that follow it cannot show another
tenant's data.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from events.archive.progress import Ended
from events.log.interface import Bus, EventLog
from events.log.leadership import MemoryLeadership
from events.log.memory import MemoryBus
from events.log.records import LogRefused
from events.log.stores import Snapshots
from replay.tenants.log import TenantLog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.log.interface import Answerer, ReadableLog
    from events.log.leadership import Leadership
    from events.log.records import Appended, Record
    from events.log.stores import Progress, ReadableSnapshots, SnapshotInfo
    from replay.tenants.shared_views import Views


# --- an archive -------------------------------------------------------------------------------------------------------


class Cluster(Protocol):
    """What the API needs from a cluster: `events.nats.connection.Connection`, or an archive."""

    @property
    def cluster(self) -> str: ...
    @property
    def log(self) -> EventLog: ...
    @property
    def bus(self) -> Bus: ...
    @property
    def leadership(self) -> Leadership: ...


class ArchivedLog(EventLog):
    """A log that has ended."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self._snapshots = _Kept(log.snapshots)
        self._progress = Ended(log.progress)

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        async with aclosing(self._log.read(after=after, subjects=subjects)) as batches:
            async for batch in batches:
                yield batch
        if follow:
            await asyncio.Event().wait()

    async def end(self) -> int:
        return await self._log.end()

    async def start(self) -> int:
        return await self._log.start()

    async def at_time(self, time: int) -> int:
        return await self._log.at_time(time)

    async def last_on(self, subject: str) -> Record | None:
        return await self._log.last_on(subject)

    async def record_at(self, seq: int) -> Record | None:
        return await self._log.record_at(seq)

    @property
    def snapshots(self) -> Snapshots:
        return self._snapshots

    @property
    def progress(self) -> Progress:
        return self._progress

    async def close(self) -> None:
        """The archive is closed by its opener."""

    async def append(
        self, subject: str, body: bytes, *, msg_id: str = "", expected_last: int | None = None, timeout: float = 5.0
    ) -> Appended:
        raise LogRefused("this is an archive; nothing can be asked of its cluster here", code="log.refused")


class _Kept(Snapshots):
    """An archive's snapshots; none is added."""

    def __init__(self, kept: ReadableSnapshots) -> None:
        self._kept = kept

    async def infos(self) -> Sequence[SnapshotInfo]:
        return await self._kept.infos()

    async def get(self, info: SnapshotInfo) -> bytes | None:
        return await self._kept.get(info)

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        return None

    async def drop(self, info: SnapshotInfo) -> None:
        return None


class ArchivedCluster:
    """The cluster whose log an archive holds. Its events keep their cluster's name, so any name matches."""

    def __init__(self, log: ReadableLog) -> None:
        self.cluster = "*"
        self.log: EventLog = ArchivedLog(log)
        self.bus: Bus = MemoryBus(time.time_ns)
        self.leadership: Leadership = MemoryLeadership()


# --- a tenant's view --------------------------------------------------------------------------------------------------


class TenantBus(Bus):
    """The bus as a tenant sees it: from a node's heartbeat, only data about the tenant's own containers."""

    def __init__(self, bus: Bus, views: Views, tenant: str) -> None:
        self._bus = bus
        self._views = views
        self._tenant = tenant

    @property
    def guarded(self) -> bool:
        return self._bus.guarded

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        await self._bus.publish_report(subject, body, timeout=timeout)

    async def reports(self, subject: str) -> AsyncGenerator[Record, None]:
        async with contextlib.aclosing(self._bus.reports(subject)) as reports:
            async for record in reports:
                if (made := self._views.report(record, self._tenant)) is not None:
                    yield made

    async def last_report(self, subject: str) -> Record | None:
        record = await self._bus.last_report(subject)
        return self._views.report(record, self._tenant) if record is not None else None

    def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncGenerator[bytes, None]:
        return self._bus.ask(subject, question, timeout=timeout)

    async def answer(self, subject: str, answerer: Answerer) -> None:
        await self._bus.answer(subject, answerer)


class TenantCluster:
    """A cluster as a tenant sees it."""

    def __init__(self, connection: Cluster, views: Views, tenant: str) -> None:
        self.cluster = connection.cluster
        self.log = TenantLog(connection.log, views, tenant)
        self.bus: Bus = TenantBus(connection.bus, views, tenant)
        self.leadership = connection.leadership
