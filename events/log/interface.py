"""The log's interface: an ordered, contiguous, append-only sequence of records, and one conformance suite for all of it.

    LogError
    ├── LogUnavailable   nothing answered in time: whether an append was stored is unknown; append again with the same id
    │   ├── LogClosed    the connection was closed for good: nothing will ever answer over it
    │   ├── NotSent      the connection was known to be lost, so nothing was sent: it is surely not stored
    │   └── LogFull      there is no room for it now: it is surely not stored, and will be when there is some
    ├── LogRefused       the log will never take this (too large, not allowed): the message says why
    │   └── LogTooOld    the server behind the log is too old
    ├── Overtaken        the expected last sequence was not the last: another writer was first
    └── LogDamaged       sequences are not contiguous or bytes do not match: reading on would skip something

Implementations: `events.log.memory`, `events.archive.appendable` (a file that grows), `events.archive.segments` (an
exported file), `events.nats.log`.  Snapshots of the state lie beside the log (`events.log.snapshots`).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from events.log.snapshots import NoSnapshots

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from events.log.records import Appended, Record
    from events.log.snapshots import Snapshots

_NO_SNAPSHOTS = NoSnapshots()


class EventLog(Protocol):
    """Appends are durable once they return.  Reads give batches of consecutive records."""

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = 5.0,
    ) -> Appended:
        """Store one record.  A second append with the same `msg_id` (within the log's duplicate window) changes
        nothing and gives the first one's sequence, which may be another publisher's: `events.appending.append_event`
        checks that it is the caller's own.  With `expected_last` it is stored only if the last record on this
        subject has that sequence (0: none yet); that is looked at first, so when an append that was stored without an
        answer is tried again, Overtaken may stand for one's own success: compare `last_on(subject)` with what was sent.

        With `expected_last` it also raises LogDamaged where the log was reached again and is not what was read of it here.

        It gives up after `timeout` (seconds), and as soon as the connection that an answer would come over is lost; where
        that is known before, it raises NotSent at once.  Nothing is ever kept to be sent later: after NotSent,
        LogFull or LogRefused the record is surely not stored by this call.
        Raises LogUnavailable, LogRefused, Overtaken, LogDamaged."""
        ...

    def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        """Batches of records with `seq > after`, in order, those whose subject matches any pattern (none: all).
        Without `follow` it ends at what was the end when it began; with it, it waits for more, for ever, also through
        outages.  Unfiltered reads assert that sequences are contiguous and repair a gap by reading again; a gap that
        stays raises LogDamaged, as does a log that ends before `after`, and one that was reached again and has another
        record in the place of the last that was read.  Raises LogUnavailable where the log can't be
        reached (with `follow`: where it never will be again, for the connection is closed), and LogRefused.

        Whoever leaves it before its end closes it (`contextlib.aclosing`), which gives back what the server holds for
        it."""
        ...

    async def end(self) -> int:
        """Sequence of the last record, 0 for an empty log.  Raises LogUnavailable."""
        ...

    async def start(self) -> int:
        """The sequence before its first record: 0, but for a part of a log, whose snapshots have the state there."""
        return 0

    async def at_time(self, time: int) -> int:
        """Sequence of the last record before the first one that is later than this log time (UTC nanoseconds); `start()`
        where there is none.  Raises as `read` does."""
        found = await self.start()
        async with contextlib.aclosing(self.read(after=found)) as batches:
            async for batch in batches:
                for record in batch:
                    if record.time > time:
                        return found
                    found = record.seq
        return found

    @property
    def snapshots(self) -> Snapshots:
        """States of this log at some of its sequences."""
        return _NO_SNAPSHOTS

    @property
    def sparse(self) -> bool:
        """Whether records were left out of it on purpose, so that it can be read but not folded."""
        return False

    @property
    def anonymized(self) -> bool:
        """Whether its records are not those that the master sealed, since names in them were replaced on purpose."""
        return False

    async def renamed_upto(self) -> int:
        """Up to which sequence its records had another cluster's name when they were sealed, 0 for none: seals up to there
        can't be checked, and those that come later hold for the records as they are now."""
        return 0

    async def check(self) -> None:
        """Whether whoever keeps it has kept all of it, and keeps it from being altered, as far as can be told without reading
        it.  Raises LogDamaged with what to do, and LogUnavailable."""
        return None

    def check_room(self) -> None:
        """Whether it takes messages as large as a master's may be.  Raises LogRefused with what to do."""
        return None

    async def torn(self) -> str:
        """In one line what is missing or broken of a log in a file, "" for a whole one; what comes before it can be read.
        Raises LogDamaged, LogRefused."""
        return ""

    async def last_on(self, subject: str) -> Record | None:
        """The last record on exactly this subject."""
        ...

    async def record_at(self, seq: int) -> Record | None:
        """The record of this sequence; None where it is not there, or not yet.  Raises LogUnavailable, LogRefused."""
        if not await self.start() < seq <= await self.end():
            return None
        async with contextlib.aclosing(self.read(after=seq - 1)) as batches:
            async for batch in batches:
                return batch[0] if batch[0].seq == seq else None
        return None

    async def close(self) -> None: ...


class Bus(Protocol):
    """What passes beside the log: heartbeats, and questions to agents.  Lost messages are nothing special here."""

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        """Store a heartbeat for a while.  Raises LogUnavailable or LogRefused."""
        ...

    def reports(self, subject: str) -> AsyncGenerator[Record, None]:
        """Heartbeats from now on, for ever; their `seq` and `time` mean nothing.  A reader that is too slow misses
        some.  Raises LogUnavailable when the connection is closed."""
        ...

    async def last_report(self, subject: str) -> Record | None:
        """The last heartbeat stored on exactly this subject."""
        ...

    def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncGenerator[bytes, None]:
        """Answers to a question, piece by piece, until the other side is done.  Raises LogUnavailable when nobody
        answers, or nothing at all is heard for `timeout`, and LogRefused with the answerer's reason.  An asker that
        closes it early ends the answerer's work; one that is slow slows the answerer down."""
        ...

    async def answer(self, subject: str, answerer: Answerer) -> None:
        """Serve questions until cancelled, several at once.  Raises LogUnavailable when the connection is closed."""
        ...


class Answerer(Protocol):
    def __call__(self, question: bytes) -> AsyncIterator[bytes]:
        """Pieces of an answer, none larger than the server's largest message; empty ones are left out.  It is closed
        when the asker has gone.  An `AskRefused` it raises reaches the asker as LogRefused."""
        ...


class AskRefused(Exception):
    """An answerer's way to say no, with a reason for the asker."""


@contextlib.asynccontextmanager
async def answering(answerer: Answerer, question: bytes) -> AsyncGenerator[AsyncIterator[bytes], None]:
    """The pieces of an answer, whose source is closed at the end (a plain iterator has nothing to close)."""
    pieces = answerer(question)
    try:
        yield pieces
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()
