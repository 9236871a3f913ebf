"""A log and a bus in memory, for tests and simulations; they behave as the real ones do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from events.kinds import LogRotated
from events.log.interface import Answerer, AskRefused, Bus, EventLog, answering
from events.log.records import (
    Appended,
    Archived,
    LogDamaged,
    LogRefused,
    LogUnavailable,
    Overtaken,
    Record,
    on_subjects,
)
from events.log.stores import MemoryFiles, MemoryParts, MemoryProgress, MemorySnapshots
from events.subjects import kind_of, matches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

BATCH = 1000
_decode = msgspec.msgpack.Decoder(LogRotated).decode


class MemoryLog(EventLog):
    """A list of records: all, until rotation removes some.  `clock` returns UTC nanoseconds and may go back; log time does
    not."""

    def __init__(self, clock: Callable[[], int], records: Iterable[Record] = ()) -> None:
        """`records` are the log's first records.  Raises LogDamaged unless their sequences are 1, 2, 3, …"""
        self.records: list[Record] = []
        self._clock = clock
        self._snapshots = MemorySnapshots()
        self._progress = MemoryProgress(clock)
        self._parts = MemoryParts()
        self._files = MemoryFiles(clock)
        self._by_id: dict[str, int] = {}
        self._last: dict[str, Record] = {}
        self._grown = asyncio.Condition()
        self._purged = 0
        """The sequence before the first record."""
        for record in records:
            self._store(record)

    def _store(self, record: Record) -> None:
        if record.seq != self._end + 1:
            raise LogDamaged(f"record {record.seq} can't follow {self._end}")
        self.records.append(record)
        self._last[record.subject] = record
        if record.msg_id:
            self._by_id[record.msg_id] = record.seq

    @property
    def _end(self) -> int:
        return self._purged + len(self.records)

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
            record = Record(self._end + 1, time, subject, bytes(body), msg_id)
            self._store(record)
            self._grown.notify_all()
            return Appended(record.seq)

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        until = self._end
        if after > until:
            raise LogDamaged(f"the log ends at {until}, before {after}", code="log.truncated")
        while True:
            if follow:
                async with self._grown:
                    while self._end <= after:
                        await self._grown.wait()
                    until = self._end
            while after < until:
                if after < self._purged:
                    raise Archived(self._purged, await self.cut())
                batch = self.records[after - self._purged : min(after + BATCH, until) - self._purged]
                after += len(batch)
                if batch := on_subjects(batch, subjects):
                    yield batch
            if not follow:
                return

    async def end(self) -> int:
        return self._end

    async def start(self) -> int:
        return self._purged

    async def base(self) -> str:
        cut = await self.cut()
        return cut.snapshot if cut is not None and cut.upto == self._purged else ""

    async def cut(self) -> LogRotated | None:
        last = [record for subject, record in self._last.items() if kind_of(subject) == LogRotated.__name__]
        newest = max(last, key=lambda record: record.seq, default=None)
        return _decode(newest.body) if newest is not None else None

    async def purge(self, upto: int) -> None:
        cut = await self.cut()
        if cut is None or upto > cut.upto:
            raise LogRefused(f"records up to {upto:,} lie in no archive", code="log.not_archived")
        del self.records[: max(0, upto - self._purged)]
        self._purged = max(self._purged, upto)
        self._last = {subject: record for subject, record in self._last.items() if record.seq > self._purged}

    async def last_on(self, subject: str) -> Record | None:
        return self._last.get(subject)

    async def record_at(self, seq: int) -> Record | None:
        return self.records[seq - 1 - self._purged] if self._purged < seq <= self._end else None

    @property
    def snapshots(self) -> MemorySnapshots:
        return self._snapshots

    @property
    def progress(self) -> MemoryProgress:
        return self._progress

    @property
    def parts(self) -> MemoryParts:
        return self._parts

    @property
    def files(self) -> MemoryFiles:
        return self._files

    async def close(self) -> None:
        return None


class MemoryBus(Bus):
    """Heartbeats and questions within one process."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last: dict[str, Record] = {}
        self._readers: list[tuple[str, asyncio.Queue[Record]]] = []
        self._answerers: dict[str, Callable[[str], Answerer]] = {}
        """Answerers by the pattern of their subjects."""
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
        answerer = next((made for pattern, made in self._answerers.items() if matches(pattern, subject)), None)
        if answerer is None:
            raise LogUnavailable("no agent answers for this node; is it running?", code="agent.no_answer")
        try:
            async with answering(answerer(subject), question) as pieces:
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
