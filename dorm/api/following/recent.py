"""The log as this process has folded it: its end is what is folded, and the newest records are read from memory.

Short pieces with a pause between them, so that a long read leaves the loop to others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from events.log.interface import ReadableLog
from events.log.records import LogRefused, Record, on_subjects

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from dorm.api.following.follower import Follower
    from events.log.snapshots import ReadableSnapshots

_MOST = 20_000
_ROOM = 32 << 20
"""Records and bytes that are kept."""
_OF_RECORD = 200
_PIECE = 200


class RecentLog(ReadableLog):
    """A follower's log, up to where it is folded.  It cannot be followed: streams are for that."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._records: deque[Record] = deque()
        self._bytes = 0
        follower.watchers.append(self._keep)
        follower.on_restart.append(self._forget)

    def _keep(self, batch: list[Record]) -> None:
        for record in batch:
            if self._records and record.seq != self._records[-1].seq + 1:
                self._forget()
            self._records.append(record)
            self._bytes += len(record.body) + _OF_RECORD
        while len(self._records) > _MOST or (self._bytes > _ROOM and len(self._records) > 1):
            self._bytes -= len(self._records.popleft().body) + _OF_RECORD

    def _forget(self) -> None:
        self._records.clear()
        self._bytes = 0

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        if follow:
            raise LogRefused("the newest records of a log cannot be followed", code="log.not_growing")
        until = self._follower.seq
        while after < until and self._records and self._records[0].seq <= after + 1:
            begin = after + 1 - self._records[0].seq
            piece = [self._records[index] for index in range(begin, min(begin + _PIECE, len(self._records)))]
            piece = [record for record in piece if record.seq <= until]
            if not piece:
                return
            after = piece[-1].seq
            if wanted := on_subjects(piece, subjects):
                yield wanted
            await asyncio.sleep(0)
        if after >= until:
            return
        async with contextlib.aclosing(self._follower.log.read(after=after, subjects=subjects)) as batches:
            async for batch in batches:
                for first in range(0, len(batch), _PIECE):
                    piece = [record for record in batch[first : first + _PIECE] if record.seq <= until]
                    if not piece:
                        return
                    yield piece
                    await asyncio.sleep(0)

    async def end(self) -> int:
        return self._follower.seq

    async def at_time(self, time: int) -> int:
        return min(self._follower.seq, await self._follower.log.at_time(time))

    @property
    def snapshots(self) -> ReadableSnapshots:
        return self._follower.log.snapshots

    async def record_at(self, seq: int) -> Record | None:
        if self._records and self._records[0].seq <= seq <= self._records[-1].seq:
            return self._records[seq - self._records[0].seq]
        return await self._follower.log.record_at(seq)

    async def close(self) -> None:
        return None
