"""A log and a bus in memory: for tests and simulations, with the same behaviour as the real ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from events.log import Answerer, Appended, AskRefused, EventLog, LogRefused, LogUnavailable, Overtaken, Record
from events.subjects import matches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

BATCH = 1000


class MemoryLog(EventLog):
    """Every record in a list.  `clock` gives log time in UTC nanoseconds."""

    def __init__(self, clock: Callable[[], int], records: Iterable[Record] = ()) -> None:
        self.records = list(records)
        self._clock = clock
        self._by_id = {record.msg_id: record.seq for record in self.records if record.msg_id}
        self._grown = asyncio.Condition()

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = 5.0,
    ) -> Appended:
        async with self._grown:
            known = self._by_id.get(msg_id) if msg_id else None
            if expected_last is not None:
                last = await self.last_on(subject)
                if (last.seq if last else 0) != expected_last:
                    raise Overtaken(f"{subject} is at {last.seq if last else 0}, not at {expected_last}")
            if known is not None:
                return Appended(known, duplicate=True)
            record = Record(len(self.records) + 1, self._clock(), subject, body, msg_id)
            self.records.append(record)
            if msg_id:
                self._by_id[msg_id] = record.seq
            self._grown.notify_all()
            return Appended(record.seq)

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncIterator[list[Record]]:
        until = len(self.records)
        while True:
            if follow:
                async with self._grown:
                    while len(self.records) <= after:
                        await self._grown.wait()
                    until = len(self.records)
            while after < until:
                batch = self.records[after : min(after + BATCH, until)]
                after += len(batch)
                if subjects:
                    batch = [r for r in batch if any(matches(pattern, r.subject) for pattern in subjects)]
                if batch:
                    yield batch
            if not follow:
                return

    async def end(self) -> int:
        return len(self.records)

    async def last_on(self, subject: str) -> Record | None:
        return next((record for record in reversed(self.records) if record.subject == subject), None)

    async def close(self) -> None:
        return None


class MemoryBus:
    """Heartbeats and questions within one process."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last: dict[str, Record] = {}
        self._readers: list[tuple[str, asyncio.Queue[Record]]] = []
        self._answerers: dict[str, Answerer] = {}
        self._count = 0

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        self._count += 1
        record = Record(self._count, self._clock(), subject, body)
        self._last[subject] = record
        for pattern, queue in self._readers:
            if matches(pattern, subject):
                queue.put_nowait(record)

    async def reports(self, subject: str) -> AsyncIterator[Record]:
        queue: asyncio.Queue[Record] = asyncio.Queue()
        self._readers.append((subject, queue))
        try:
            while True:
                yield await queue.get()
        finally:
            self._readers.remove((subject, queue))

    async def last_report(self, subject: str) -> Record | None:
        return self._last.get(subject)

    async def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncIterator[bytes]:
        if subject not in self._answerers:
            raise LogUnavailable(f"nobody answers on {subject}")
        try:
            async for piece in self._answerers[subject](question):
                yield piece
        except AskRefused as error:
            raise LogRefused(str(error)) from None

    async def answer(self, subject: str, answerer: Answerer) -> None:
        self._answerers[subject] = answerer
        try:
            await asyncio.Event().wait()
        finally:
            self._answerers.pop(subject, None)
