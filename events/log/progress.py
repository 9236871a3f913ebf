"""Progress beside the log: what apps report between two marks.

The log has the reports that decisions and forecasts depend on: the first of each generation, the last, and marks
about once a minute.  The reports in between are records of a separate stream with its own sequences. It drops the
oldest ones and no decision depends on it, so a missing or incomplete stream affects only curves.

A reader that wants all of them reads both, in the order of their times (`events.combined`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from events.log.records import LogRefused, Record, on_subjects
from events.subjects import PROGRESS, matches, token

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

EVERY = "*"
"""Stands for every app."""
MOST_KEPT = 10_000
"""Records that a stream in memory keeps."""


class ReadableProgress(Protocol):
    """The stream as readers see it.  Sequences ascend, with gaps where records are forgotten or of other apps."""

    def read(self, *, after: int = 0, app: str = EVERY, follow: bool = False) -> AsyncGenerator[list[Record], None]:
        """Yield batches of records with `seq > after`, in order; of one app, by its id, or of every app.  Without `follow` it
        ends at the stream's end as of the start.  Raises LogUnavailable, LogRefused (with `follow` only once the connection is
        closed, or if the identity may not read it)."""
        ...

    async def newest(self, app: str = EVERY) -> list[Record]:
        """Return the newest record of each app, or of one.  Raises LogUnavailable, LogRefused."""
        ...

    async def end(self) -> int:
        """Return the sequence of the last record, 0 for none.  Raises LogUnavailable, LogRefused."""
        ...

    async def at_time(self, time: int) -> int:
        """Return the sequence of the last record before the first one that is later than this time (UTC ns), 0 for none.
        Raises LogUnavailable, LogRefused."""
        ...


class Progress(ReadableProgress, Protocol):
    """The stream as agents see it."""

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = 5.0) -> None:
        """Store one report.  Raises LogUnavailable, LogRefused: it need not be tried again, since the next one is newer."""
        ...


class NoProgress(Progress):
    """A log without such a stream."""

    async def read(
        self, *, after: int = 0, app: str = EVERY, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        del after, app
        if follow:
            await asyncio.Event().wait()
        return
        yield []

    async def newest(self, app: str = EVERY) -> list[Record]:
        return []

    async def end(self) -> int:
        return 0

    async def at_time(self, time: int) -> int:
        return 0

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = 5.0) -> None:
        raise LogRefused("this log has no stream of progress", code="log.no_progress")


class MemoryProgress(Progress):
    """The stream in memory.  `clock` returns UTC ns."""

    def __init__(self, clock: Callable[[], int], records: Iterable[Record] = ()) -> None:
        self.records: list[Record] = list(records)
        self._ids = {record.msg_id: None for record in self.records}
        self._clock = clock
        self._grown = asyncio.Condition()

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = 5.0) -> None:
        if not matches(of_app(EVERY), subject):
            raise LogRefused(f"{subject[:200]!r} is not a subject of progress", code="log.subject.malformed")
        async with self._grown:
            if msg_id and msg_id in self._ids:
                return
            self._ids[msg_id] = None
            last = self.records[-1] if self.records else None
            time = max(self._clock(), last.time if last is not None else 0)
            self.records.append(Record(last.seq + 1 if last is not None else 1, time, subject, bytes(body), msg_id))
            del self.records[:-MOST_KEPT]
            self._grown.notify_all()

    async def read(
        self, *, after: int = 0, app: str = EVERY, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        pattern = of_app(app)
        while True:
            found = [record for record in self.records if record.seq > after]
            if found:
                after = found[-1].seq
                if wanted := on_subjects(found, [pattern]):
                    yield wanted
            if not follow:
                return
            async with self._grown:
                while not self.records or self.records[-1].seq <= after:
                    await self._grown.wait()

    async def newest(self, app: str = EVERY) -> list[Record]:
        pattern = of_app(app)
        by_subject = {record.subject: record for record in self.records if matches(pattern, record.subject)}
        return sorted(by_subject.values(), key=lambda record: record.seq)

    async def end(self) -> int:
        return self.records[-1].seq if self.records else 0

    async def at_time(self, time: int) -> int:
        return max((record.seq for record in self.records if record.time <= time), default=0)


def of_app(app: str) -> str:
    """Return the pattern of an app's subjects, of any cluster: a stream is of one."""
    return f"dorm.*.{PROGRESS}.*.{app if app == EVERY else token(app)}"


async def upto(progress: ReadableProgress, time: int, since: int) -> list[Record]:
    """Return the records that were stored after one time and up to another (UTC ns)."""
    found: list[Record] = []
    async with contextlib.aclosing(progress.read(after=await progress.at_time(since))) as batches:
        async for batch in batches:
            found += [record for record in batch if record.time <= time]
            if batch[-1].time > time:
                break
    return found
