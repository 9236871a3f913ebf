"""A log and a bus in memory, for tests and simulations; they behave as the real ones do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from events.log.interface import Answerer, AskRefused, Bus, EventLog, answering
from events.log.records import Appended, LogDamaged, LogRefused, LogUnavailable, Overtaken, Record, on_subjects
from events.log.snapshots import MemorySnapshots
from events.subjects import matches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

BATCH = 1000


class MemoryLog(EventLog):
    """A list of all records.  `clock` returns UTC nanoseconds and may go back; log time does not."""

    def __init__(self, clock: Callable[[], int], records: Iterable[Record] = ()) -> None:
        """`records` are the log's first records.  Raises LogDamaged unless their sequences are 1, 2, 3, …"""
        self.records: list[Record] = []
        self._clock = clock
        self._snapshots = MemorySnapshots()
        self._by_id: dict[str, int] = {}
        self._last: dict[str, Record] = {}
        self._grown = asyncio.Condition()
        for record in records:
            self._store(record)

    def _store(self, record: Record) -> None:
        if record.seq != len(self.records) + 1:
            raise LogDamaged(f"record {record.seq} can't follow {len(self.records)}")
        self.records.append(record)
        self._last[record.subject] = record
        if record.msg_id:
            self._by_id[record.msg_id] = record.seq

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
            last = self._last[subject].seq if subject in self._last else 0
            if expected_last is not None and last != expected_last:
                raise Overtaken(f"{subject} is at {last}, not at {expected_last}")
            if msg_id and msg_id in self._by_id:
                return Appended(self._by_id[msg_id], duplicate=True)
            time = max(self._clock(), self.records[-1].time if self.records else 0)
            record = Record(len(self.records) + 1, time, subject, bytes(body), msg_id)
            self._store(record)
            self._grown.notify_all()
            return Appended(record.seq)

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        until = len(self.records)
        if after > until:
            raise LogDamaged(f"the log ends at {until}, before {after}", code="log.truncated")
        while True:
            if follow:
                async with self._grown:
                    while len(self.records) <= after:
                        await self._grown.wait()
                    until = len(self.records)
            while after < until:
                batch = self.records[after : min(after + BATCH, until)]
                after += len(batch)
                if batch := on_subjects(batch, subjects):
                    yield batch
            if not follow:
                return

    async def end(self) -> int:
        return len(self.records)

    async def last_on(self, subject: str) -> Record | None:
        return self._last.get(subject)

    async def record_at(self, seq: int) -> Record | None:
        return self.records[seq - 1] if 0 < seq <= len(self.records) else None

    @property
    def snapshots(self) -> MemorySnapshots:
        return self._snapshots

    async def close(self) -> None:
        return None


class MemoryBus(Bus):
    """Heartbeats and questions within one process."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last: dict[str, Record] = {}
        self._readers: list[tuple[str, asyncio.Queue[Record]]] = []
        self._answerers: dict[str, Callable[[str], Answerer]] = {}
        """By the pattern of their subjects."""
        self._count = 0

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        self._count += 1
        record = Record(self._count, self._clock(), subject, bytes(body))
        self._last[subject] = record
        for pattern, queue in self._readers:
            if matches(pattern, subject):
                queue.put_nowait(record)

    async def reports(self, subject: str) -> AsyncGenerator[Record, None]:
        reader: tuple[str, asyncio.Queue[Record]] = (subject, asyncio.Queue())
        self._readers.append(reader)
        try:
            while True:
                yield await reader[1].get()
        finally:
            self._readers.remove(reader)

    async def last_report(self, subject: str) -> Record | None:
        return self._last.get(subject)

    async def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncGenerator[bytes, None]:
        found = next((made for pattern, made in self._answerers.items() if matches(pattern, subject)), None)
        if found is None:
            raise LogUnavailable("no agent answers for this node; is it running?", code="agent.no_answer")
        try:
            async with answering(found(subject), question) as pieces:
                async for piece in pieces:
                    if piece:
                        yield piece
        except AskRefused as error:
            raise LogRefused(str(error), code="agent.refused") from None

    async def answer(self, subject: str, answerer: Answerer) -> None:
        await self.answer_each(subject, lambda _: answerer)

    async def answer_each(self, pattern: str, answerer_of: Callable[[str], Answerer], *, queue: str = "") -> None:
        self._answerers[pattern] = answerer_of
        try:
            await asyncio.Event().wait()
        finally:
            with suppress(KeyError):
                del self._answerers[pattern]
