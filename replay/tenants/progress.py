"""The progress beside the log as a tenant sees it: of its own apps alone."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from events.codec import decode
from events.kinds import AppProgressed
from events.log.records import LogRefused
from events.log.stores import EVERY_APP, Progress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from events.log.records import Record
    from events.log.stores import ReadableProgress
    from replay.tenants.views import Views


class OwnProgress(Progress):
    """Reads through to the stream."""

    def __init__(self, progress: ReadableProgress, views: Views, tenant: str) -> None:
        self._progress = progress
        self._views = views
        self._tenant = tenant

    def _own(self, records: list[Record]) -> list[Record]:
        state = self._views.state
        apps = state.apps if state is not None else {}
        found = []
        for record in records:
            event = decode(record)
            app = apps.get(event.app) if isinstance(event, AppProgressed) else None
            if app is not None and app.tenant == self._tenant:
                found.append(record)
        return found

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
