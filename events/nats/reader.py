"""Read a stream: with a pull consumer driven by hand, or one request at a time.

*With a consumer* (`Reader`), up to two requests are outstanding, answered into one callback.  This is the fastest way
to read in Python, and gives back-pressure: nothing is requested until what has arrived is consumed.  The consumer is
ephemeral.  On any failure (server killed, heartbeats missing, a gap) the reader raises `ReopenReader`, and another one
is opened right after the last record handed on, so records are neither lost nor repeated.

*Directly* (`read_directly`), from any server that holds the stream.  A consumer lives on one server and is created by
the cluster's leader, so if either dies there is none for the length of an election (4 to 9 s on three servers).
Meanwhile readers that follow the log use this path: it needs no leader, and a server's copy of a stream is always a
prefix without gaps.  It needs no consumer either, so it also serves if a stream has as many as it may, and readers who
shall not have any.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import math
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from events.log.records import LogDamaged, Record
from events.log.records import original as imported_record
from events.nats.link import as_log_errors, ended
from events.nats.settings import stream_state

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from types import TracebackType

    from nats.aio.subscription import Subscription

    from events.nats.link import Link


# --- with a consumer --------------------------------------------------------------------------------------------------

BATCH = 2000
"""Records per request."""
BATCH_BYTES = 8 * 1024 * 1024
"""Bytes per request, unless the server's largest message needs more."""
_EXPIRES_S = 30.0
_HEARTBEAT_S = 1.0
_SILENCE_S = 3.5
"""Seconds without records or heartbeats after which nothing more will come."""
_CLUSTER_SILENCE_S = 2.2
"""The same on a cluster, where a consumer may die with its server while the connection to another server stands."""
_UNUSED_S = 60.0
"""Seconds after which the server drops an unused consumer that the reader could not delete."""
_SERVER_LIMIT = 1024
"""The most bytes that the server counts for a message's subject, reply and headers."""
_MAKING_S = 1.0
_MSG_ID = b"\r\nNats-Msg-Id:"
_NO_MESSAGE = 10037
_LATEST = 2**63 - 1
"""UTC ns; the server uses the same range."""
_REQUEST_OVER = ("Batch Completed", "Message Size Exceeds MaxBytes")


class ReopenReader(Exception):
    """The consumer is no longer usable; open another one after the last record handed on."""


class RecordMissing(ReopenReader):
    """The server skipped from one record past the next one."""


class NotDelivered(ReopenReader):
    """A message did not arrive, or not in time; the server may still have it."""


class EndsBefore(ReopenReader):
    """The answering server reports that the log ends before the last record read from it."""


class StartsLater(ReopenReader):
    """The stream begins later than the reader wants to: the earlier records are in an archive, or are gone."""

    def __init__(self, first: int) -> None:
        super().__init__(f"the log's stream begins at {first}")
        self.first = first


class Reader:
    """One pull consumer, from creation to deletion: `async with Reader(…) as reader: await reader.next()`."""

    def __init__(
        self,
        link: Link,
        stream: str,
        after: int,
        filters: Sequence[str],
        imported: int = 0,
        timeout: float = 5.0,
        *,
        replaces: bool = False,
    ) -> None:
        """`imported`: the last sequence that comes from an archive (`events.log.records`).  `timeout`: seconds for each
        request that creates the consumer.  `replaces`: the stream is not a log and keeps the last message of each subject."""
        self._replaces = replaces
        self._timeout = timeout
        self._silence_s = _CLUSTER_SILENCE_S if link.clustered else _SILENCE_S
        self._link = link
        self._client = link.client
        self._stream = stream
        self._after = after
        self._filters = list(filters)
        self._imported = imported
        self._inbox = self._client.new_inbox()
        # The reader chooses the name, so that it can delete the consumer even if it never learns that it was created.
        self._consumer = self._inbox.rsplit(".", 1)[-1]
        self._next = f"{link.api}.CONSUMER.MSG.NEXT.{stream}.{self._consumer}"
        self._subscription: Subscription | None = None
        self._buffer: list[Record] = []
        self._arrived = asyncio.Event()
        self._broken: ReopenReader | None = None
        self._delivered = 0
        self._pending = 0
        """Records that the server may still send for outstanding requests."""
        request = {
            "batch": BATCH,
            "max_bytes": max(BATCH_BYTES, self._client.max_payload + _SERVER_LIMIT),
            "expires": int(_EXPIRES_S * 1e9),
        }
        # Two requests are outstanding, which the server serves in turn.  One heartbeat of the two says enough, so every other
        # request goes without.
        beating = {**request, "idle_heartbeat": int(_HEARTBEAT_S * 1e9)}
        self._bodies = itertools.cycle([json.dumps(beating).encode(), json.dumps(request).encode()])

    async def __aenter__(self) -> Reader:
        """Raises LogUnavailable, LogRefused, and ReopenReader if the stream does not reach back, or up, to `after`."""
        self._link.watchers.add(self._interrupt)
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _open(self) -> None:
        manager = self._link.jetstream(timeout=self._timeout)
        with as_log_errors("reading the log"):
            state = await stream_state(self._link, self._stream, self._timeout)
            self._check_reach(int(state["first_seq"]), int(state["last_seq"]))
            self._subscription = await self._link.take(self._inbox, self._take)
            await _finished(manager.add_consumer(self._stream, self.consumer()))
        await self._request()
        await self._request()

    def _check_reach(self, first: int, last: int) -> None:
        if last < self._after:
            raise EndsBefore(f"the log ends at {last}, before record {self._after}, which was read from it")
        if first > self._after + 1 and not self._replaces:
            raise StartsLater(first)

    def consumer(self) -> ConsumerConfig:
        """Return the consumer to create."""
        return ConsumerConfig(
            name=self._consumer,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._after + 1,
            ack_policy=AckPolicy.NONE,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_UNUSED_S,
            filter_subject=self._filters[0] if len(self._filters) == 1 else None,
            filter_subjects=self._filters if len(self._filters) > 1 else None,
        )

    async def _request(self) -> None:
        self._pending += BATCH
        try:
            await self._client.publish(self._next, next(self._bodies), reply=self._inbox)
        except nats.errors.Error as error:
            raise ReopenReader(str(error)) from None

    def _take(self, subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        # $JS.ACK.<stream>.<consumer>.<tries>.<seq>.<delivered>.<time>.<pending>, or with a domain and an account in front.
        parts = reply.split(b".")
        try:
            if len(parts) == 9:
                seq, delivered, time = int(parts[5]), int(parts[6]), int(parts[7])
            elif len(parts) > 9:
                seq, delivered, time = int(parts[7]), int(parts[8]), int(parts[9])
            else:
                self._on_status(header)
                self._arrived.set()
                return
        except ValueError:  # No server writes this; the client's reading task calls here, so it must not raise.
            self._break(ReopenReader(f"a message without a place in the log: {reply[:80]!r}"))
            return
        self._pending -= 1
        if self._broken is not None:
            return
        if delivered != self._delivered + 1:
            self._break(NotDelivered(f"between record {self._after} and {seq} something did not arrive"))
            return
        if not self._filters and seq != self._after + 1:
            self._break(RecordMissing(f"after record {self._after} came {seq}"))
            return
        self._delivered, self._after = delivered, seq
        if not self._buffer:
            self._arrived.set()
        record = Record(seq, time, _text(subject), body, message_id(header) if header else "")
        self._buffer.append(record if seq > self._imported else as_it_was(record, header))

    def _on_status(self, header: bytes) -> None:
        status, description, headers = status_of(header)
        if status == "100":  # A heartbeat; it states how far the consumer is, so it also reveals a lost last record.
            sent = headers.get("Nats-Last-Consumer", "")
            if sent.isdigit() and int(sent) > self._delivered:
                self._break(NotDelivered(f"after record {self._after} something did not arrive"))
        elif status in ("404", "408") or (status == "409" and description in _REQUEST_OVER):
            # This request is over; a header states how much of it was left.
            left = headers.get("Nats-Pending-Messages", "")
            self._pending -= int(left) if left.isdigit() else BATCH
        else:  # Consumer deleted, leadership changed, server shutting down, no responders (503).
            self._break(ReopenReader(f"status {status} {description}"))

    def _interrupt(self, what: str) -> None:
        """The connection came back (outstanding requests are lost) or is closed."""
        self._break(ReopenReader(what))

    def _break(self, reason: ReopenReader) -> None:
        self._broken = self._broken or reason
        self._arrived.set()

    async def next(self, patience: float | None = None) -> list[Record]:
        """Return at least one record, in order.  Wait without end, or at most `patience` seconds if a record must exist.
        Raises ReopenReader, LogRefused."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + patience if patience is not None else math.inf
        while not self._buffer:
            if self._broken is not None:
                raise self._broken
            if loop.time() > ends:
                raise NotDelivered(f"no record came after record {self._after}, which is not the last")
            await self._ask_ahead()
            self._arrived.clear()
            try:
                async with asyncio.timeout(self._silence_s):
                    await self._arrived.wait()
            except TimeoutError:
                self._link.permissions.check_request(self._next, self._inbox)
                raise ReopenReader("neither records nor heartbeats") from None
        batch, self._buffer = self._buffer, []
        if self._broken is None:
            await self._ask_ahead()
        return batch

    async def _ask_ahead(self) -> None:
        while self._pending <= BATCH:
            await self._request()

    async def _close(self) -> None:
        self._link.watchers.discard(self._interrupt)
        with contextlib.suppress(nats.errors.Error):
            if self._subscription is not None:
                await self._link.leave(self._subscription)
        with contextlib.suppress(nats.errors.Error):
            # Not awaited; if the connection is lost, the server drops the unused consumer by itself.
            await self._client.publish(f"{self._link.api}.CONSUMER.DELETE.{self._stream}.{self._consumer}", b"")


async def _finished(making: Coroutine[Any, Any, object]) -> None:
    """Await the creation.  A deletion may overtake the creation, so on cancellation wait briefly for it to finish."""
    task = asyncio.create_task(making)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=_MAKING_S)
        raise
    finally:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await ended(task)


async def last_record(
    link: Link, stream: str, subject: str, timeout: float = 5.0, *, imported: int = 0
) -> Record | None:
    """Return the last record whose subject matches, as the stream's leader has it.  Raises LogUnavailable, LogRefused."""
    with as_log_errors("reading the last record"):
        return await _record(link, stream, {"last_by_subj": subject}, timeout, imported)


async def record_at(link: Link, stream: str, seq: int, timeout: float = 5.0, *, imported: int = 0) -> Record | None:
    """Return the record with a sequence, as the stream's leader has it.  Raises LogUnavailable, LogRefused."""
    with as_log_errors("reading a record"):
        return await _record(link, stream, {"seq": seq}, timeout, imported)


async def check_still_there(link: Link, stream: str, record: Record, *, imported: int = 0) -> None:
    """Check that the log still has this record, read earlier, in its place.  A server that lost acknowledged records and
    accepted others since then has not.  Raises LogDamaged, LogUnavailable."""
    stored = await record_at(link, stream, record.seq, imported=imported)
    if stored is not None and stored != record:
        raise LogDamaged(
            f"record {record.seq} differs from the one read before: the log lost records and stored others in their place",
            code="log.altered",
        )


async def first_since(link: Link, stream: str, time: int, timeout: float = 5.0) -> Record | None:
    """Return the first record with this log time (UTC ns) or a later one, as the stream's leader has it.  Raises
    LogUnavailable, LogRefused."""
    with as_log_errors("looking for a time"):
        return await _record(link, stream, {"start_time": _rfc3339(time)}, timeout)


async def _record(link: Link, stream: str, which: dict[str, Any], timeout: float, imported: int = 0) -> Record | None:
    # Requested by hand, since nats-py returns the time in microseconds only.
    await link.connected(timeout)
    reply = await link.client.request(
        f"{link.api}.STREAM.MSG.GET.{stream}", json.dumps(which).encode(), timeout=timeout
    )
    answer: dict[str, Any] = json.loads(reply.data)
    if error := answer.get("error"):
        if error.get("err_code") == _NO_MESSAGE:
            return None
        raise nats.js.errors.APIError(
            code=error.get("code"), description=error.get("description"), err_code=error.get("err_code")
        )
    message = answer["message"]
    headers = base64.b64decode(message.get("hdrs", ""))
    record = Record(
        message["seq"],
        nanoseconds(message["time"]),
        message["subject"],
        base64.b64decode(message.get("data", "")),
        message_id(headers),
    )
    return record if record.seq > imported else as_it_was(record, headers)


def as_it_was(record: Record, headers: bytes) -> Record:
    """Restore the time and the id that a record had in its archive."""
    original = imported_record(headers)
    if original is not None:
        record.time, record.msg_id = original
    return record


def nanoseconds(text: str) -> int:
    """Return UTC nanoseconds of the server's RFC 3339 time: `2026-11-21T08:54:56.951824524Z`."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(whole + "+00:00").timestamp()) * 10**9 + int(fraction.ljust(9, "0")[:9] or 0)


def _rfc3339(time: int) -> str:
    """Format UTC nanoseconds as RFC 3339, clamped to the server's range."""
    seconds, nanoseconds = divmod(min(max(time, 0), _LATEST), 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"


def message_id(headers: bytes) -> str:
    begin = headers.find(_MSG_ID)
    if begin < 0:
        return ""
    begin += len(_MSG_ID)
    return headers[begin : headers.find(b"\r\n", begin)].strip().decode(errors="replace")


def status_of(header: bytes) -> tuple[str, str, dict[str, str]]:
    """Parse `NATS/1.0 100 Idle Heartbeat` and the following lines: return the number, its description, and the headers."""
    first, *lines = header.decode(errors="replace").split("\r\n")
    _, status, description = [*first.split(" ", 2), "", ""][:3]
    headers = dict(line.split(":", 1) for line in lines if ":" in line)
    return status, description, {name: value.strip() for name, value in headers.items()}


@lru_cache(maxsize=65536)
def _text(subject: bytes) -> str:
    return subject.decode(errors="replace")


# --- directly ---------------------------------------------------------------------------------------------------------

_BATCH = 500
_BATCH_BYTES = 2 * 1024 * 1024
_TIMEOUT_S = 1.0


async def read_directly(link: Link, stream: str, after: int, imported: int = 0, *, pattern: str = "") -> list[Record]:
    """Return the records right after that sequence; [] if there are none or no server answers.  `pattern`: of a stream that
    keeps the last message of each subject, those that match and whose sequences are later."""
    records: list[Record] = []
    over = asyncio.Event()

    def take(subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        del subject, reply
        status, _, headers = status_of(header)
        seq = headers.get("Nats-Sequence", "")
        if status or not seq.isdigit():
            over.set()  # No more records, or no server.
        elif int(seq) > (records[-1].seq if records else after) if pattern else int(seq) == after + len(records) + 1:
            time, original = nanoseconds(headers["Nats-Time-Stamp"]), headers.get("Nats-Subject", "")
            record = Record(int(seq), time, original, body, message_id(header))
            records.append(record if record.seq > imported else as_it_was(record, header))

    inbox = link.client.new_inbox()
    question: dict[str, int | str] = {"seq": after + 1, "batch": _BATCH, "max_bytes": _BATCH_BYTES}
    question |= {"next_by_subj": pattern} if pattern else {}
    with contextlib.suppress(nats.errors.Error, TimeoutError):
        subscription = await link.take(inbox, take)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await link.client.publish(f"{link.api}.DIRECT.GET.{stream}", json.dumps(question).encode(), reply=inbox)
                await over.wait()
        finally:
            await link.leave(subscription)
    return records
