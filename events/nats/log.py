"""The log on NATS JetStream: appending, reading, and what the stream says of itself.

`streams` creates the streams, `reader` reads, `bus` carries the messages outside the log, `link` holds the connection,
`importing` fills a log from an archive.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING

from events import subjects as names
from events.errors import code_of
from events.limits import LEAST_MAX_PAYLOAD
from events.log.interface import EventLog
from events.log.records import (
    Appended,
    LogClosed,
    LogDamaged,
    LogError,
    LogRefused,
    LogUnavailable,
    Record,
    on_subjects,  # fmt: skip
    renamed_upto,
)
from events.logger import Logger
from events.nats.access import message_id
from events.nats.integrity import Rotated, check_stream
from events.nats.leadership import JetStreamLeadership
from events.nats.link import NO_MORE_READERS, Link, as_log_errors
from events.nats.parts_store import JetStreamParts
from events.nats.reader import (
    EndsBefore,
    NotDelivered,
    Reader,
    RecordMissing,
    ReopenReader,
    StartsLater,
    check_still_there,
    first_since,
    last_record,
    read_directly,
    record_at,  # fmt: skip
)
from events.nats.settings import LARGEST_RECORD, Room, room, set_limit, stream_state
from events.nats.stores import JetStreamFiles, JetStreamProgress, JetStreamSnapshots
from events.nats.streams import log_stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.kinds import LogRotated

__all__ = ["JetStreamLog"]

_RECONNECT_S = 5.0
_PAUSE_S = 0.1
_OPEN_S, _CLUSTER_OPEN_S, _LONGEST_OPEN_S = 5.0, 2.0, 20.0
_ELECTION_TRIES = 4
_MOST_DOUBLINGS, _MOST_DOUBLINGS_CROWDED = 10, 3
_STALE_S = 30.0
_ASK_S = 1.0
_TRIES_AT_A_GAP = 3
_OVERDUE_S = 5.0
"""Seconds that a record known to be stored may take to arrive from a responsive server."""
_log = Logger(__name__)


class JetStreamLog(EventLog):
    """The cluster's log: a file stream from which only rotation removes records (`events.nats.integrity`)."""

    def __init__(
        self, link: Link, cluster: str, imported: int = 0, leadership: JetStreamLeadership | None = None
    ) -> None:
        """`imported`: the last sequence that comes from an archive (`events.log.records`)."""
        self._link = link
        self._imported = imported
        self._cluster = cluster
        self._stream = log_stream(cluster)
        self._taken = names.log_subjects(cluster)
        self._short_since = math.inf
        """Time, by the loop's clock, since which servers have reported a log shorter than what was read; else infinite."""
        self._read: Record | None = None
        """The last record read by a reader that follows the whole log."""
        self._reached_again = False
        """Whether the log was reached again since `_read` was last verified."""
        link.watchers.add(self._note_reached)
        self._snapshots = JetStreamSnapshots(link, cluster, self._stream)
        self._rotated = Rotated(link, cluster, self._stream, imported)
        self._progress = JetStreamProgress(link, cluster)
        self._parts = JetStreamParts(link, cluster, leadership or JetStreamLeadership(link, cluster))
        self._files = JetStreamFiles(link, cluster)

    def _note_reached(self, what: str) -> None:
        del what
        self._reached_again = True

    async def _check_read(self) -> None:
        """After a reconnect, check that the last record read is still there: a restarted server may have lost it, and
        decisions depend on it.  Raises LogDamaged, LogUnavailable."""
        if self._reached_again and self._read is not None:
            self._reached_again = False
            try:
                await check_still_there(self._link, self._stream, self._read, imported=self._imported)
            except BaseException:
                self._reached_again = True
                raise

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = 5.0,
    ) -> Appended:
        if not names.valid(subject) or not names.matches(self._taken, subject):
            raise LogRefused(
                f"append: {subject[:200]!r} is not a subject of this log ({self._taken})", code="log.subject.malformed"
            )
        headers = {"Nats-Expected-Stream": self._stream}
        if msg_id:
            if not msg_id.isascii() or not msg_id.isprintable() or msg_id != msg_id.strip():
                raise LogRefused(f"append: the id {msg_id[:80]!r} is not printable ASCII", code="log.id.malformed")
            headers["Nats-Msg-Id"] = message_id(msg_id, self._link.credentials)
        if expected_last is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected_last)
        self._link.check_size(body, sum(map(len, headers.values())), LARGEST_RECORD)
        await self._link.sendable("append", timeout)
        if expected_last is not None:
            await self._check_read()
        try:
            with as_log_errors("append"):
                ack = await self._link.jetstream().publish(subject, body, timeout=timeout, headers=headers)
        except LogUnavailable as error:
            if isinstance(error.__cause__, TimeoutError) and await self._only_stores_nothing():
                raise LogUnavailable(
                    f"append: the NATS server answers and stores nothing: is its disk full ({self._link.url})? Make "
                    "room and restart it; its log says more",
                    code="log.stores_nothing",
                ) from None
            raise
        return Appended(ack.seq, duplicate=bool(ack.duplicate))

    async def _only_stores_nothing(self) -> bool:
        """Return whether the stream has a leader but stores nothing: once its disk was full, a stream drops messages
        silently, even when there is room again."""
        with contextlib.suppress(LogError), as_log_errors("asking"):
            info = await self._link.jetstream(timeout=_ASK_S).stream_info(self._stream)
            return info.cluster is None or bool(info.cluster.leader)
        return False

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        until = None if follow else await self._end_of(after, subjects)
        at_the_server = self._filters(subjects)
        gaps = failures = 0
        last: Record | None = None
        while until is None or after < until:
            try:
                await self._link.connected(None if follow else _RECONNECT_S)
                patience = self._patience(failures)
                async with Reader(self._link, self._stream, after, at_the_server, self._imported, patience) as reader:
                    failures, self._short_since = 0, math.inf
                    if last is not None:
                        await check_still_there(self._link, self._stream, last, imported=self._imported)
                    while until is None or after < until:
                        if until is None and subjects:
                            batch, after = await self._rotated.next(reader, after, subjects)
                        else:
                            batch = await reader.next(None if until is None else _OVERDUE_S)
                        if not batch:
                            continue
                        last, gaps = batch[-1], 0
                        after = last.seq
                        if follow and not subjects:
                            self._read = last
                        wanted = self._wanted(batch, until, () if at_the_server else subjects)
                        if wanted:
                            yield wanted
                return
            except StartsLater as error:
                raise await self._rotated.before_start(after, error.first) from None
            except EndsBefore as error:
                reason: Exception = self._ends_before(str(error))
                if isinstance(reason, LogDamaged):
                    raise reason from None
            except ReopenReader as error:
                reason = error
                gaps += isinstance(error, RecordMissing | NotDelivered)
                if gaps == 1 and isinstance(error, RecordMissing):
                    _log.warning("a server's copy of the log may be damaged, asking again", reason=str(error))
                if gaps == _TRIES_AT_A_GAP:
                    # With filters, only the last record that must come is known.
                    reason, gaps = await self._at_a_gap(error, (until or 0) if at_the_server else after + 1), 0
                    if isinstance(reason, LogDamaged) or not follow:
                        raise reason from None
            except LogUnavailable as error:
                if not follow and error.code != NO_MORE_READERS:
                    raise
                if self._link.client.is_closed:
                    raise LogClosed(f"the connection to {self._link.url} is closed") from None
                reason = error
            _log.debug("reading again", after=after, reason=str(reason))
            await asyncio.sleep(min(_PAUSE_S * 2**failures, self._patience(failures) / 4))
            failures = min(failures + 1, _MOST_DOUBLINGS)
            # A reader that takes all consumers does not keep others from reading.
            crowded = code_of(reason) == NO_MORE_READERS
            if (crowded or (follow and self._link.clustered)) and self._link.client.is_connected:
                failures = min(failures, _MOST_DOUBLINGS_CROWDED) if crowded else failures
                if batch := await read_directly(self._link, self._stream, after, self._imported):
                    last, after, failures = batch[-1], batch[-1].seq, 0 if crowded else failures
                    if wanted := self._wanted(batch, until, subjects):
                        yield wanted

    def _patience(self, failures: int) -> float:
        """Seconds that creating a reader may take.  If too many readers are created at once, quick retries make it worse; on
        several servers the first tries wait for an election."""
        if self._link.clustered:
            return min(_CLUSTER_OPEN_S * 2.0 ** max(0, failures - _ELECTION_TRIES), _LONGEST_OPEN_S)
        return min(_OPEN_S * 2.0**failures, _LONGEST_OPEN_S)

    def _filters(self, subjects: Sequence[str]) -> list[str]:
        """Return what the server can filter by: patterns within the stream that do not overlap; [] if it can't."""
        patterns = sorted(set(subjects))
        apart = not any(names.overlap(a, b) for index, a in enumerate(patterns) for b in patterns[:index])
        within = all(names.matches(self._taken, pattern) and ">" not in pattern for pattern in patterns)
        return patterns if apart and within else []

    @staticmethod
    def _wanted(batch: list[Record], until: int | None, subjects: Sequence[str]) -> list[Record]:
        if until is not None and batch[-1].seq > until:
            batch = [record for record in batch if record.seq <= until]
        return on_subjects(batch, subjects)

    async def _end_of(self, after: int, subjects: Sequence[str]) -> int:
        """Return the sequence that a bounded read has to reach: the last one on these subjects."""
        start, end = await self._bounds()
        while after > end:
            error = self._ends_before(f"the log ends at {end}, before {after}")
            if isinstance(error, LogDamaged):
                raise error
            await asyncio.sleep(_ASK_S)
            start, end = await self._bounds()
        self._short_since = math.inf
        if after < start:
            raise await self._rotated.before_start(after, start + 1)
        if not subjects:
            return end
        last = [await last_record(self._link, self._stream, pattern) for pattern in subjects]
        return max((min(record.seq, end) for record in last if record), default=0)

    async def end(self) -> int:
        return (await self._bounds())[1]

    async def start(self) -> int:
        return (await self._bounds())[0]

    async def _bounds(self) -> tuple[int, int]:
        """Return the sequence before the stream's first record, and that of its last."""
        await self._link.connected(_RECONNECT_S)
        with as_log_errors("looking up the end of the log"):
            state = await stream_state(self._link, self._stream, _RECONNECT_S)
        return await self._rotated.check_start(int(state["first_seq"])), int(state["last_seq"])

    async def base(self) -> str:
        cut = await self.cut()
        return cut.snapshot if cut is not None and cut.upto == await self.start() else ""

    async def cut(self) -> LogRotated | None:
        await self._link.connected(_RECONNECT_S)
        return await self._rotated.cut()

    async def purge(self, upto: int) -> None:
        await self._link.connected(_RECONNECT_S)
        await self._rotated.purge(upto)

    async def room(self) -> Room:
        """Return how many bytes the log takes, and may take.  Raises LogUnavailable, LogRefused."""
        await self._link.connected(_RECONNECT_S)
        return await room(self._link, self._stream, _RECONNECT_S)

    async def set_limit(self, limit: int | None) -> None:
        """Limit the log to this many bytes; None removes the limit. Raises LogRefused, LogUnavailable."""
        await self._link.connected(_RECONNECT_S)
        await set_limit(self._link, self._stream, limit, _RECONNECT_S)

    def _ends_before(self, description: str) -> LogError:
        """Return the error for a log that is shorter than what was read of it.  In a cluster, a server that was cut
        off answers for a while as if it still led, so the condition has to persist."""
        now = asyncio.get_running_loop().time()
        self._short_since = min(self._short_since, now)
        if self._link.clustered and now - self._short_since < _STALE_S:
            return LogUnavailable(f"{description}: one of the servers is behind the others", code="log.behind")
        return LogDamaged(description, code="log.truncated")

    async def _at_a_gap(self, error: ReopenReader, seq: int) -> LogError:
        """Return the error for a record that does not come after repeated requests.  `seq` is a record that must exist, 0 if
        none is known.  If a server has it, the log is whole: the server is slow, or the connection loses messages."""
        if isinstance(error, RecordMissing):
            return LogDamaged(f"records are missing from the log: {error}", code="log.records_missing")
        try:
            # The end first: a stale server reports it here, and would not have the record either.
            if 0 < seq <= await self.end() and await record_at(self._link, self._stream, seq) is None:
                return LogDamaged(f"records are missing from the log: {error}", code="log.records_missing")
        except LogUnavailable as unavailable:
            return unavailable
        return LogUnavailable(f"reading the log: {error}: the server at {self._link.url} is too slow; try again")

    async def renamed_upto(self) -> int:
        await self._link.connected(_RECONNECT_S)
        with as_log_errors("looking up where the log comes from"):
            config = (await self._link.jetstream().stream_info(self._stream)).config
        return renamed_upto(config.metadata, self._cluster)

    async def at_time(self, time: int) -> int:
        """Ask the server, in one request.  If its clock had gone back, the result may be any place where the log passes this
        time; the fold takes the later of two times, so it knows only the first of them."""
        if self._imported and (among := await self._imported_at(time, await self.end())) is not None:
            return among
        later = await first_since(self._link, self._stream, time + 1)
        return await self.end() if later is None else max(later.seq - 1, self._imported)

    async def _imported_at(self, time: int, end: int) -> int | None:
        """Search the imported records, whose times the server does not know; None if the time is after all of them."""
        high = min(self._imported, end)
        low = min(await self.start(), high)
        latest = high
        while low < high:
            middle = (low + high) // 2
            record = await record_at(self._link, self._stream, middle + 1, imported=self._imported)
            if record is None:
                raise LogDamaged(f"record {middle + 1} is missing from the log", code="log.records_missing")
            low, high = (middle + 1, high) if record.time <= time else (low, middle)
        return low if low < latest or latest == end else None

    async def check(self) -> None:
        await self._link.connected(_RECONNECT_S)
        with as_log_errors("checking the log"):
            await check_stream(self._link, self._cluster)

    def check_room(self) -> None:
        takes = self._link.client.max_payload
        if takes < LEAST_MAX_PAYLOAD:
            raise LogRefused(
                f"the NATS server at {self._link.url} takes messages of at most {takes:,} bytes, and a master needs "
                f"{LEAST_MAX_PAYLOAD:,}: set max_payload to 1MB or more in the server's configuration, and reload it",
                code="server.max_payload.too_small",
            )

    @property
    def snapshots(self) -> JetStreamSnapshots:
        return self._snapshots

    @property
    def progress(self) -> JetStreamProgress:
        return self._progress

    @property
    def parts(self) -> JetStreamParts:
        return self._parts

    @property
    def files(self) -> JetStreamFiles:
        return self._files

    async def last_on(self, subject: str) -> Record | None:
        return await last_record(self._link, self._stream, subject, imported=self._imported)

    async def record_at(self, seq: int) -> Record | None:
        return await record_at(self._link, self._stream, seq, imported=self._imported) if seq > 0 else None

    async def close(self) -> None:
        return None
