"""The log's interface: an ordered, contiguous, append-only sequence of records, and one conformance suite for all of it.

    LogError
    ├── LogUnavailable   nothing answered in time: whether an append was stored is unknown; append again with the same id
    ├── LogRefused       the log will never take this (too large, not allowed, disk full): the message says why
    │   └── LogTooOld    the server behind the log is too old
    ├── Overtaken        the expected last sequence was not the last: another writer was first
    └── LogDamaged       sequences are not contiguous or bytes do not match: reading on would skip something

Implementations: `events.memory`, `events.archive` (a file), `events.jetstream`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class LogError(Exception):
    """Root of what a log raises; every message is one line for people."""


class LogUnavailable(LogError):
    """No answer in time.  An append may or may not have been stored."""


class LogRefused(LogError):
    """Never going to be stored as it is."""


class LogTooOld(LogRefused):
    """The server lacks what the log needs."""


class Overtaken(LogError):
    """Somebody else appended to the subject first."""


class LogDamaged(LogError):
    """What was read can't be the whole log."""


class Record(msgspec.Struct, gc=False, array_like=True):
    """One message of the log, raw.  Export copies these bytes, so fields that this build does not know are kept."""

    seq: int
    """From 1, without gaps."""
    time: int
    """Log time, UTC nanoseconds, set by whoever holds the log; it never goes back by contract of the fold (which takes
    the later of this and the last one)."""
    subject: str
    body: bytes
    msg_id: str = ""


class Appended(msgspec.Struct, frozen=True):
    """Where an append ended up; `duplicate` when a record with this id had been stored before."""

    seq: int
    duplicate: bool = False


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
        nothing and gives the first one's sequence.  With `expected_last` it is stored only if the last record on this
        subject has that sequence (0: none yet).  Raises LogUnavailable, LogRefused, Overtaken."""
        ...

    def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncIterator[list[Record]]:
        """Batches of records with `seq > after`, in order, those whose subject matches any pattern (none: all).
        Without `follow` it ends at what was the end when it began; with it, it waits for more, for ever.  Unfiltered
        reads assert that sequences are contiguous and repair a gap by reading again; a gap that stays raises
        LogDamaged.  Raises LogUnavailable only where nothing could be read at all."""
        ...

    async def end(self) -> int:
        """Sequence of the last record, 0 for an empty log.  Raises LogUnavailable."""
        ...

    async def last_on(self, subject: str) -> Record | None:
        """The last record on exactly this subject."""
        ...

    async def close(self) -> None: ...


class Bus(Protocol):
    """What passes beside the log: heartbeats, and questions to agents.  Lost messages are nothing special here."""

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        """Store a heartbeat for a while.  Raises LogUnavailable or LogRefused."""
        ...

    def reports(self, subject: str) -> AsyncIterator[Record]:
        """Heartbeats from now on, for ever."""
        ...

    async def last_report(self, subject: str) -> Record | None:
        """The last heartbeat stored on exactly this subject."""
        ...

    def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncIterator[bytes]:
        """Answers to a question, piece by piece, until the other side is done.  Raises LogUnavailable when nobody
        answers within `timeout`, and LogRefused with the answerer's reason."""
        ...

    async def answer(self, subject: str, answerer: Answerer) -> None:
        """Serve questions until cancelled."""
        ...


class Answerer(Protocol):
    def __call__(self, question: bytes) -> AsyncIterator[bytes]:
        """Pieces of an answer.  An `AskRefused` it raises reaches the asker as LogRefused."""
        ...


class AskRefused(Exception):
    """An answerer's way to say no, with a reason for the asker."""
