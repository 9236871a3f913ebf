"""The log's interface: an ordered, contiguous, append-only sequence of records.

    ReadableLog      what every log offers: records, its bounds, snapshots
    └── EventLog     a cluster's log, which also accepts appends

A function that only reads takes a `ReadableLog`, so it works on a cluster's log and on an archive alike.

    LogError
    ├── LogUnavailable   no answer in time: whether an append was stored is unknown; append again with the same id
    │   ├── LogClosed    the connection was closed permanently: nothing will ever answer over it
    │   ├── NotSent      the connection was known to be lost, so nothing was sent: surely not stored
    │   └── LogFull      the log has no room for now: surely not stored; retry when there is room
    ├── LogRefused       the log will never take this (too large, not allowed): the message says why
    │   ├── Archived     the records lie in an archive, and no longer in the log's stream
    │   └── LogTooOld    the server behind the log is too old
    ├── Overtaken        the expected last sequence was not the last: another writer was first
    └── LogDamaged       sequences are not contiguous or bytes do not match: reading on would skip records

`EventLog` is implemented by `events.log.memory` and `events.nats.log`, `ReadableLog` by the archives as well
(`events.archive`).  One conformance suite for each interface covers all of them. Snapshots of the state are kept next
to the log (`events.log.stores`); to fold from one, a reader takes the nearest at or before a moment that belongs to
this log.

A log and the stream of progress next to it can be read as one.  Past records come in order of time. A reader that
follows gets later records as they arrive from either stream.  A place in both is the log's position and the stream's
sequence, so a reader resumes exactly from the two, whatever the clocks of their servers say.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from events.errors import DormError
from events.log.records import Archived, LogError, LogRefused, LogUnavailable, Record
from events.log.stores import EVERY_APP, NoFiles, NoParts, NoProgress, NoSnapshots, identity
from events.logger import Logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from events.kinds import LogRotated
    from events.log.records import Appended, Record
    from events.log.stores import (
        Files,
        Parts,
        Progress,
        ReadableParts,
        ReadableProgress,
        ReadableSnapshots,
        SnapshotInfo,
        Snapshots,
    )


# --- logs and the bus -------------------------------------------------------------------------------------------------

_NO_SNAPSHOTS = NoSnapshots()
_NO_PROGRESS = NoProgress()
_NO_PARTS = NoParts()
_NO_FILES = NoFiles()


class ReadableLog(Protocol):
    """A log to read from.  Reads yield batches of consecutive records."""

    def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        """Yield batches of records with `seq > after`, in order, whose subject matches any pattern (none: all).

        Without `follow` the read ends at the log's end as it was when the read started; with it, the read waits for more
        records without end, through outages too.  A log that can't grow refuses to be followed (LogRefused).

        Unfiltered reads assert that sequences are contiguous and repair a gap by reading again.  A gap that stays raises
        LogDamaged, as does a log that ends before `after`, or one that after a reconnect has another record in the place of
        the last one read.
        Raises LogUnavailable if the log can't be reached (with `follow`: only once the connection is closed), and LogRefused.

        A reader that stops before the end closes the generator (`contextlib.aclosing`), which frees its server resources."""
        ...

    async def end(self) -> int:
        """Return the sequence of the last record, 0 for an empty log.  Raises LogUnavailable."""
        ...

    async def start(self) -> int:
        """Return the sequence before the first record: 0, except in a part of a log, whose snapshots hold that state."""
        return 0

    async def base(self) -> str:
        """Return the address of the snapshot at `start()` that a master has signed; "" if none is known, and any will do."""
        return ""

    async def part_at(self, seq: int) -> ReadableLog:
        """Return the part of this log to fold from for the state after record `seq`: itself, unless it has several parts, each
        with a snapshot at its start.  Raises LogRefused if that part can't be read."""
        del seq
        return self

    async def at_time(self, time: int) -> int:
        """Return the sequence of the last record before the first one that is later than this log time (UTC nanoseconds);
        `start()` if there is none.  Raises as `read` does."""
        seq = await self.start()
        async with contextlib.aclosing(self.read(after=seq)) as batches:
            async for batch in batches:
                for record in batch:
                    if record.time > time:
                        return seq
                    seq = record.seq
        return seq

    @property
    def snapshots(self) -> ReadableSnapshots:
        """Copies of the state at some of this log's sequences."""
        return _NO_SNAPSHOTS

    @property
    def progress(self) -> ReadableProgress:
        """What apps reported between two marks on this log."""
        return _NO_PROGRESS

    @property
    def parts(self) -> ReadableParts:
        """The parts of a cluster's nodes; an archive has none."""
        return _NO_PARTS

    @property
    def sparse(self) -> bool:
        """Whether records were left out on purpose: the log can be read but not folded."""
        return False

    @property
    def anonymized(self) -> bool:
        """Whether names were replaced on purpose: the records are not those that the master sealed."""
        return False

    async def renamed_upto(self) -> int:
        """Return the last sequence whose record was sealed under another cluster's name, 0 for none.  Seals up to there can't
        be checked; later ones hold for the records as they are now."""
        return 0

    async def torn(self) -> str:
        """Return in one line what is missing or broken in a log file, "" for a whole one; records before the damage can be
        read.  Raises LogDamaged, LogRefused."""
        return ""

    async def last_on(self, subject: str) -> Record | None:
        """Return the last record on exactly this subject; None if there is none."""
        last = None
        async with contextlib.aclosing(self.read(after=await self.start(), subjects=[subject])) as batches:
            async for batch in batches:
                last = batch[-1]
        return last

    async def record_at(self, seq: int) -> Record | None:
        """Return the record with this sequence; None if it does not exist, or not yet.  Raises LogUnavailable, LogRefused."""
        if not await self.start() < seq <= await self.end():
            return None
        async with contextlib.aclosing(self.read(after=seq - 1)) as batches:
            async for batch in batches:
                return batch[0] if batch[0].seq == seq else None
        return None

    async def close(self) -> None: ...


async def time_of(log: ReadableLog, seq: int) -> int:
    """Return a record's log time (UTC ns), 0 if there is none.  A log that lacks the record, as a part of a log, a tenant's
    view or a damaged archive may, gives the time of the next one.  Raises what `log.read` raises."""
    if seq <= 0:
        return 0
    record = await log.record_at(seq)
    if record is not None:
        return record.time
    async with contextlib.aclosing(log.read(after=max(seq - 1, await log.start()))) as batches:
        async for batch in batches:
            return batch[0].time
    return 0


class EventLog(ReadableLog, Protocol):
    """A log to read from and to append to.  Appends are durable once they return."""

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = 5.0,
    ) -> Appended:
        """Store one record.

        A second append with the same `msg_id` (within the log's duplicate window) changes nothing and returns the first one's
        sequence.  That record may be another publisher's: `events.appending.append_event` checks this.

        With `expected_last` the record is stored only if the last record on this subject has that sequence (0: none yet).
        This check comes before deduplication, so a retry of an append that was stored without an answer may raise Overtaken:
        compare `last_on(subject)` with what was sent.  With `expected_last` the append also raises LogDamaged if the log,
        after a reconnect, no longer holds what was read of it here.

        It gives up after `timeout` (seconds), and as soon as the connection that would carry the answer is lost; if
        the connection is already lost, it raises NotSent at once.  Nothing is queued to be sent later: after NotSent,
        LogFull or LogRefused, this call has certainly not stored the record. Raises LogUnavailable, LogRefused,
        Overtaken, LogDamaged."""
        ...

    @property
    def snapshots(self) -> Snapshots:
        """Copies of the state at some of this log's sequences; more can be stored."""
        ...

    @property
    def progress(self) -> Progress:
        """What apps reported between two marks on this log; more can be stored."""
        return _NO_PROGRESS

    @property
    def parts(self) -> Parts:
        """The parts of the nodes, which the leading master writes and agents follow."""
        return _NO_PARTS

    @property
    def files(self) -> Files:
        """The folders that clients ship for their apps."""
        return _NO_FILES

    async def check(self) -> None:
        """Check, without reading the log, that its store still has all records and protects them from changes, as far
        as the store reports that.  Raises LogDamaged with what to do, and LogUnavailable."""
        return None

    async def cut(self) -> LogRotated | None:
        """Return the newest signed statement that the log's past is in an archive; None if there is none. Raises
        LogUnavailable, LogRefused."""
        return None

    async def purge(self, upto: int) -> None:
        """Remove the records up to `upto`, which a cut has to cover.  Only rotation may do so.  Sequences do not change.
        Raises LogRefused if no cut covers them or the store forbids it, and LogUnavailable."""
        raise LogRefused(f"records up to {upto:,} can't be removed from this log", code="log.not_archived")

    def check_room(self) -> None:
        """Check that the log accepts messages as large as a master's may be.  Raises LogRefused with what to do."""
        return None


class Bus(Protocol):
    """Messages outside the log: heartbeats, and questions to agents.  Messages may be lost."""

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        """Store a heartbeat for a limited time.  Raises LogUnavailable or LogRefused."""
        ...

    def reports(self, subject: str) -> AsyncGenerator[Record, None]:
        """Yield heartbeats from now on, without end; their `seq` and `time` mean nothing.  A slow reader misses some.  Raises
        LogUnavailable when the connection is closed."""
        ...

    async def last_report(self, subject: str) -> Record | None:
        """Return the last heartbeat stored on exactly this subject; None if there is none."""
        ...

    def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of an answer until the answerer is done.  Raises LogUnavailable if no process answers or nothing
        arrives for `timeout` (seconds), and LogRefused with the answerer's reason.  Closing the generator early stops the
        answerer; a slow caller slows it down."""
        ...

    async def answer(self, subject: str, answerer: Answerer) -> None:
        """Serve questions until cancelled, several at once.  Raises LogUnavailable when the connection is closed."""
        ...

    async def answer_each(self, pattern: str, answerer_of: Callable[[str], Answerer], *, queue: str = "") -> None:
        """Serve questions on all subjects that match, each by the answerer for its subject.  Of several processes that serve
        them under one name of a `queue`, each question goes to one.  Raises as `answer`."""
        await self.answer(pattern, answerer_of(pattern))

    async def answer_all(self, subject: str, answerer: Answerer) -> None:
        """Serve questions to which all askers get the same short answer, whatever they ask, until cancelled.  No asker can
        delay another: nothing waits until an answer is taken, and those that ask at once share one call of the answerer, which
        begins at the first question and is given none.  Raises as `answer`."""
        await self.answer(subject, answerer)

    @property
    def guarded(self) -> bool:
        """Whether a server guards who uses which subject, so that a subject says who asks."""
        return False


class Answerer(Protocol):
    """Answers a question in pieces; it is called again for each question, also while it answers another."""

    def __call__(self, question: bytes) -> AsyncIterator[bytes]:
        """Yield pieces of an answer, none larger than the server's largest message; empty ones are left out.  The generator
        is closed when the caller has gone.  An `AskRefused` it raises reaches the caller as LogRefused."""
        ...


class AskRefused(DormError):
    """Raised by an answerer that refuses a question, with a reason for the caller."""

    code = "agent.refused"


@contextlib.asynccontextmanager
async def answering(answerer: Answerer, question: bytes) -> AsyncGenerator[AsyncIterator[bytes], None]:
    """Yield the pieces of an answer, and close their source at the end (a plain iterator has nothing to close)."""
    pieces = answerer(question)
    try:
        yield pieces
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()


# --- a log and its progress as one ------------------------------------------------------------------------------------

_WAITING = 2
"""Batches that wait for the reader."""


class Piece(NamedTuple):
    """Consecutive records of one of the two."""

    records: Sequence[Record]
    beside: bool
    """Whether the records are of the stream of progress."""


class Combined:
    """One reading of both: `async for piece in combined.pieces()`, once."""

    def __init__(
        self, log: ReadableLog, *, after: int, beside: int, subjects: Sequence[str] = (), app: str = EVERY_APP,
        follow: bool = False, latest: int | None = None, beside_until: int | None = None,
    ) -> None:  # fmt: skip
        """It begins after a sequence of the log, and after one of the stream.  `subjects` are the patterns of the log's
        records; `app` restricts the stream to an app's id; `latest` ends it at a time (UTC ns), `beside_until` at a sequence
        of its own."""
        self._log = log
        self._after, self._progress_seq = after, beside
        self._subjects, self._app = subjects, app
        self._follow, self._latest, self._beside_until = follow, latest, beside_until

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield existing records in order of time and, when following, later ones. Raises the errors of
        `ReadableLog.read`; an unreadable stream of progress is left out."""
        try:
            async with contextlib.aclosing(self._merged()) as merged:
                async for piece in merged:
                    self._note(piece)
                    yield piece
        except LogUnavailable:
            if not self._follow:
                raise
        if self._follow:
            async with contextlib.aclosing(self._arriving()) as arriving:
                async for piece in arriving:
                    yield piece

    def _note(self, piece: Piece) -> None:
        if piece.beside:
            self._progress_seq = piece.records[-1].seq
        else:
            self._after = piece.records[-1].seq

    async def _merged(self) -> AsyncGenerator[Piece, None]:
        log = self._log.read(after=self._after, subjects=self._subjects)
        progress = self._progress(follow=False)
        async with contextlib.aclosing(log), contextlib.aclosing(progress):
            records, reports = await _next(log), await _next(progress)
            while records or reports:
                if not reports or (records and records[0].time <= reports[0].time):
                    taken = _upto(records, reports[0].time if reports else None)
                    yield Piece(records[:taken], beside=False)
                    records = records[taken:] or await _next(log)
                else:
                    taken = _before(reports, records[0].time if records else None)
                    yield Piece(reports[:taken], beside=True)
                    reports = reports[taken:] or await _next(progress)

    async def _progress(self, *, follow: bool) -> AsyncGenerator[list[Record], None]:
        with contextlib.suppress(LogRefused) if follow else contextlib.suppress(LogRefused, LogUnavailable):
            read = self._log.progress.read(after=self._progress_seq, app=self._app, follow=follow)
            async with contextlib.aclosing(read) as batches:
                async for batch in batches:
                    wanted = [report for report in batch if self._within(report)]
                    if wanted:
                        yield wanted
                    if len(wanted) < len(batch):
                        return

    def _within(self, record: Record) -> bool:
        return (self._latest is None or record.time <= self._latest) and (
            self._beside_until is None or record.seq <= self._beside_until
        )

    async def _arriving(self) -> AsyncGenerator[Piece, None]:
        queue: asyncio.Queue[Piece | BaseException] = asyncio.Queue(_WAITING)

        async def pump(batches: AsyncGenerator[list[Record], None], *, beside: bool) -> None:
            try:
                async with contextlib.aclosing(batches) as open_batches:
                    async for batch in open_batches:
                        await queue.put(Piece(batch, beside))
            except Exception as error:  # For the reader, who may be waiting for the queue.
                await queue.put(error)

        log = self._log.read(after=self._after, subjects=self._subjects, follow=True)
        tasks = [
            asyncio.create_task(pump(log, beside=False)),
            asyncio.create_task(pump(self._progress(follow=True), beside=True)),
        ]
        try:
            while True:
                piece = await queue.get()
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _next(batches: AsyncIterator[list[Record]]) -> Sequence[Record]:
    return await anext(batches, [])


def _upto(records: Sequence[Record], time: int | None) -> int:
    """Return how many come first, up to a time."""
    return next(
        (index for index, record in enumerate(records) if time is not None and record.time > time), len(records)
    )


def _before(records: Sequence[Record], time: int | None) -> int:
    """Return how many come first, before a time; at least the first one does."""
    indexes = (index for index, record in enumerate(records) if index and time is not None and record.time >= time)
    return next(indexes, len(records))


# --- the nearest snapshot ---------------------------------------------------------------------------------------------

Loaded = TypeVar("Loaded")
_log = Logger(__name__)


async def nearest(
    log: ReadableLog,
    *,
    upto: int,
    latest: int | None = None,
    core: int,
    build: str,
    load: Callable[[SnapshotInfo, bytes], Loaded | None],
    drop_foreign_from: Snapshots | None = None,
) -> tuple[SnapshotInfo, Loaded] | None:
    """Return the newest snapshot of the log's part with record `upto` that is no later than this sequence and the log time
    `latest`, and what `load` makes of it (called in a thread; None refuses).  Return None if no snapshot is usable, for any
    reason: the log is then folded from the start, which takes longer and is never wrong.

    Snapshots of another `core` or `build` are skipped, except the one at the start of a part of a log: nothing else can be
    folded from there, so `load` decides; if a master has signed one, no other counts there.  The log's owner passes the
    store as `drop_foreign_from`: snapshots of another log or beyond this one's end are dropped from it.

    Raises LogUnavailable and LogRefused if the log's start is unknown, or only a snapshot leads past it.
    """
    while True:
        try:
            return await _nearest(await log.part_at(upto), upto, latest, (core, build), load, drop_foreign_from)
        except Archived:  # A rotation has removed the start since.
            if await log.start() >= upto:
                raise


async def _nearest(
    log: ReadableLog, upto: int, latest: int | None, fitting: tuple[int, str],
    load: Callable[[SnapshotInfo, bytes], Loaded | None], drop_foreign_from: Snapshots | None,
) -> tuple[SnapshotInfo, Loaded] | None:  # fmt: skip
    start, base = await log.start(), await log.base()
    try:
        infos = await log.snapshots.infos()
        for info in reversed(infos):
            if drop_foreign_from is not None and info.seq > upto:
                await drop_foreign_from.drop(info)
            fits = (info.core, info.build) == fitting or (0 < start == info.seq)
            if not fits or not start <= info.seq <= upto or (latest is not None and info.time > latest):
                continue
            if info.seq == start and base not in ("", info.content):
                _log.warning("a snapshot is not the one that a master has signed", seq=info.seq)
                continue
            if not await _is_of(log, info, start):
                _log.debug("a snapshot of another log", seq=info.seq)
                if drop_foreign_from is not None:
                    await drop_foreign_from.drop(info)
                continue
            snapshot = await log.snapshots.fetch(info)
            loaded = None if snapshot is None else await asyncio.to_thread(load, *snapshot)
            if snapshot is not None and loaded is not None:
                return snapshot[0], loaded
            _log.debug("a snapshot is of no use", seq=info.seq, there=snapshot is not None)
    except LogError as error:
        if start or isinstance(error, Archived):
            raise
        _log.debug("snapshots can't be read", reason=str(error))
    return None


async def _is_of(log: ReadableLog, info: SnapshotInfo, start: int) -> bool:
    """Return whether the log holds the record after which the snapshot was taken."""
    if not info.record or info.seq == start:
        return True
    async with contextlib.aclosing(log.read(after=info.seq - 1)) as batches:
        async for batch in batches:
            return batch[0].seq == info.seq and identity(batch[0]) == info.record
    return False
