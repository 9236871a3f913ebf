"""Progress next to an archive: `incident.progress.dorm` next to `incident.dorm`.

It is a separate archive, of the records of the stream of progress with their sequences, so the archive of the log is
unchanged and readable by every release. Programs that open the log find the progress if both files are in the same
folder.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from events.log.interface import ReadableLog
from events.log.records import LogRefused
from events.log.stores import EVERY_APP, Progress, ReadableProgress, of_app

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from events.log.records import Record
    from events.log.stores import ReadableSnapshots


def progress_path(path: Path) -> Path:
    """Return where the progress of an archive is."""
    return path.with_name(f"{path.stem}.progress{path.suffix or '.dorm'}")


class ArchivedProgress(ReadableProgress):
    """The stream of progress in an archive of its records."""

    def __init__(self, records: ReadableLog) -> None:
        self._records = records

    async def read(
        self, *, after: int = 0, app: str = EVERY_APP, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        if after < await self.end():
            async with contextlib.aclosing(self._records.read(after=after, subjects=[of_app(app)])) as batches:
                async for batch in batches:
                    yield batch
        if follow:
            await asyncio.Event().wait()

    async def newest(self, app: str = EVERY_APP) -> list[Record]:
        latest: dict[str, Record] = {}
        async with contextlib.aclosing(self.read(app=app)) as batches:
            async for batch in batches:
                latest |= {record.subject: record for record in batch}
        return sorted(latest.values(), key=lambda record: record.seq)

    async def end(self) -> int:
        return await self._records.end()

    async def at_time(self, time: int) -> int:
        return await self._records.at_time(time)


class Ended(Progress):
    """A stream of progress to which nothing is added any more."""

    def __init__(self, progress: ReadableProgress) -> None:
        self._progress = progress

    async def read(
        self, *, after: int = 0, app: str = EVERY_APP, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        async with contextlib.aclosing(self._progress.read(after=after, app=app, follow=follow)) as batches:
            async for batch in batches:
                yield batch

    async def newest(self, app: str = EVERY_APP) -> list[Record]:
        return await self._progress.newest(app)

    async def end(self) -> int:
        return await self._progress.end()

    async def at_time(self, time: int) -> int:
        return await self._progress.at_time(time)

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = 5.0) -> None:
        raise LogRefused("this is an archive; nothing can be added to it", code="log.refused")


class WithProgress(ReadableLog):
    """An archive, with the progress next to it."""

    def __init__(self, log: ReadableLog, progress: ReadableProgress) -> None:
        self._log = log
        self._progress = progress

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        async with contextlib.aclosing(self._log.read(after=after, subjects=subjects, follow=follow)) as batches:
            async for batch in batches:
                yield batch

    async def end(self) -> int:
        return await self._log.end()

    async def start(self) -> int:
        return await self._log.start()

    async def at_time(self, time: int) -> int:
        return await self._log.at_time(time)

    @property
    def snapshots(self) -> ReadableSnapshots:
        return self._log.snapshots

    @property
    def progress(self) -> ReadableProgress:
        return self._progress

    @property
    def sparse(self) -> bool:
        return self._log.sparse

    @property
    def anonymized(self) -> bool:
        return self._log.anonymized

    async def renamed_upto(self) -> int:
        return await self._log.renamed_upto()

    async def torn(self) -> str:
        return await self._log.torn()

    async def last_on(self, subject: str) -> Record | None:
        return await self._log.last_on(subject)

    async def record_at(self, seq: int) -> Record | None:
        return await self._log.record_at(seq)

    async def close(self) -> None:
        """Both are closed by their opener."""
