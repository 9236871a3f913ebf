"""The log as far as it is folded, with the progress beside it."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from events.log.interface import ReadableLog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from dorm.api.follower import Follower, RecentLog
    from events.log.progress import ReadableProgress
    from events.log.records import Record
    from events.log.snapshots import ReadableSnapshots


class Both(ReadableLog):
    """Of the log up to a record; its newest records come from memory."""

    def __init__(self, recent: RecentLog, follower: Follower, upto: int | None = None) -> None:
        """`upto`: the last sequence that is read, None for all that is folded."""
        self._recent = recent
        self._follower = follower
        self._upto = upto

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        upto = self._upto
        if upto is not None and after >= upto:
            return
        async with aclosing(self._recent.read(after=after, subjects=subjects, follow=follow)) as batches:
            async for batch in batches:
                if upto is None or batch[-1].seq < upto:
                    yield batch
                    continue
                if wanted := [record for record in batch if record.seq <= upto]:
                    yield wanted
                return

    async def end(self) -> int:
        end = await self._recent.end()
        return end if self._upto is None else min(end, self._upto)

    async def start(self) -> int:
        return await self._recent.start()

    async def at_time(self, time: int) -> int:
        return await self._recent.at_time(time)

    @property
    def snapshots(self) -> ReadableSnapshots:
        return self._recent.snapshots

    @property
    def progress(self) -> ReadableProgress:
        return self._follower.log.progress

    async def close(self) -> None:
        return None
