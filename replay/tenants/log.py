"""A log as one tenant sees it, in the process that reads the log itself."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from events.log.interface import EventLog
from events.log.records import LogRefused, Record, on_subjects
from events.log.stores import SnapshotInfo, Snapshots
from replay.tenants.progress import OwnProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.log.records import Appended
    from events.log.stores import Progress
    from replay.tenants.views import Views


class TenantLog(EventLog):
    """Appends go to the log; reads come from views of it, which another process serves."""

    def __init__(self, log: EventLog, views: Views, tenant: str) -> None:
        self._log = log
        self._views = views
        self._tenant = tenant
        self._snapshots = TenantSnapshots(views, tenant)

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        until = None if follow else await self._views.end()
        if until is not None and after == until:
            return
        async with aclosing(self._views.read(self._tenant, after=after, until=until)) as pieces:
            async for piece in pieces:
                if wanted := on_subjects(piece, subjects):
                    yield wanted

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = 5.0,
    ) -> Appended:
        return await self._log.append(subject, body, msg_id=msg_id, expected_last=expected_last, timeout=timeout)

    async def end(self) -> int:
        return await self._views.end()

    async def at_time(self, time: int) -> int:
        return await self._log.at_time(time)

    @property
    def snapshots(self) -> Snapshots:
        return self._snapshots

    @property
    def progress(self) -> Progress:
        return OwnProgress(self._log.progress, self._views, self._tenant)

    @property
    def anonymized(self) -> bool:
        return True

    async def close(self) -> None:
        """The log stays open: it is not this one's."""


class TenantSnapshots(Snapshots):
    """The log's snapshots as a tenant sees them, which are not stored."""

    def __init__(self, views: Views, tenant: str) -> None:
        self._views = views
        self._tenant = tenant

    async def infos(self) -> Sequence[SnapshotInfo]:
        return await self._views.infos(self._tenant)

    async def get(self, info: SnapshotInfo) -> bytes | None:
        found = await self.fetch(info)
        return found[1] if found is not None else None

    async def fetch(self, info: SnapshotInfo) -> tuple[SnapshotInfo, bytes] | None:
        return await self._views.snapshot(self._tenant, info.seq)

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        raise LogRefused("snapshots of a view are not stored", code="log.view.read_only")

    async def drop(self, info: SnapshotInfo) -> None:
        raise LogRefused("snapshots of a view are not stored", code="log.view.read_only")
