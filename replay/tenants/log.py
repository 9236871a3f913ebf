"""A log as one tenant sees it, in the process that reads the log itself: with the progress beside it, of its own apps
alone."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from events.codec import decode
from events.kinds import AppProgressed
from events.log.interface import EventLog
from events.log.records import LogRefused, Record, on_subjects
from events.log.stores import EVERY_APP, Progress, SnapshotInfo, Snapshots

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.log.records import Appended, Record
    from events.log.stores import ReadableProgress
    from replay.tenants.shared_views import Views


# --- progress ---------------------------------------------------------------------------------------------------------


class OwnProgress(Progress):
    """Reads through to the stream."""

    def __init__(self, progress: ReadableProgress, views: Views, tenant: str) -> None:
        self._progress = progress
        self._views = views
        self._tenant = tenant

    def _own(self, records: list[Record]) -> list[Record]:
        state = self._views.state
        apps = state.apps if state is not None else {}
        own = []
        for record in records:
            event = decode(record)
            app = apps.get(event.app) if isinstance(event, AppProgressed) else None
            if app is not None and app.tenant == self._tenant:
                own.append(record)
        return own

    async def read(
        self, *, after: int = 0, app: str = EVERY_APP, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        async with aclosing(self._progress.read(after=after, app=app, follow=follow)) as batches:
            async for batch in batches:
                if own := self._own(batch):
                    yield own

    async def newest(self, app: str = EVERY_APP) -> list[Record]:
        return self._own(await self._progress.newest(app))

    async def end(self) -> int:
        return await self._progress.end()

    async def at_time(self, time: int) -> int:
        return await self._progress.at_time(time)

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = 5.0) -> None:
        raise LogRefused("only nodes report progress", code="log.view.read_only")


# --- log --------------------------------------------------------------------------------------------------------------


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
        body = await self.fetch(info)
        return body[1] if body is not None else None

    async def fetch(self, info: SnapshotInfo) -> tuple[SnapshotInfo, bytes] | None:
        return await self._views.snapshot(self._tenant, info.seq)

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        raise LogRefused("snapshots of a view are not stored", code="log.view.read_only")

    async def drop(self, info: SnapshotInfo) -> None:
        raise LogRefused("snapshots of a view are not stored", code="log.view.read_only")
