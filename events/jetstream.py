"""The log and the bus on NATS JetStream.  The only module that imports nats.

Reading is a pull consumer driven by hand: requests are kept two ahead and answered into one callback, which is the fastest
that Python reads and gives back-pressure (nothing is asked for that was not consumed).  The consumer is a throw-away; whatever
happens to it (server killed, heartbeats missing, a gap), another one is opened right after the last record that was handed
on, so records are neither lost nor repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
import nats.js.errors
import structlog
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    StreamConfig,
)

from events import subjects as names
from events.log import (
    Answerer,
    Appended,
    AskRefused,
    Bus,
    EventLog,
    LogDamaged,
    LogRefused,
    LogTooOld,
    LogUnavailable,
    Overtaken,
    Record,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

OLDEST_SERVER = (2, 12)
DUPLICATE_WINDOW_S = 600.0
REPORT_AGE_S = 3600.0
_BATCH = 500
_EXPIRES_S = 30.0
_HEARTBEAT_S = 1.0
_SILENCE_S = 3.5
_WRONG_LAST_SEQUENCE = (10071, 10164)
_log = structlog.get_logger(__name__)


class Connection:
    """One connection to a NATS server, and the cluster's log and bus over it."""

    def __init__(self, client: Client, url: str, cluster: str) -> None:
        self._client = client
        self.url = url
        self.cluster = cluster
        self.log = JetStreamLog(client, cluster)
        self.bus: Bus = NatsBus(client, cluster)

    @classmethod
    async def open(cls, url: str, cluster: str, *, name: str = "dorm", timeout: float = 5.0) -> Connection:
        """Connect, check the server's version, and make the streams unless they are there.

        Raises LogUnavailable when nobody answers, LogTooOld, or LogRefused (no JetStream, no permission).
        """
        names.check_cluster(cluster)
        client = await _connect(url, name, timeout)
        try:
            connection = cls(client, url, cluster)
            await _make_streams(client, cluster, timeout)
        except BaseException:
            await client.close()
            raise
        return connection

    async def close(self) -> None:
        with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError):
            await asyncio.wait_for(self._client.drain(), 2.0)
        if not self._client.is_closed:
            await self._client.close()


async def _connect(url: str, name: str, timeout: float) -> Client:
    async def on_error(error: Exception) -> None:
        # Permission denials and slow consumers show up only here.
        _log.debug("nats error", error=str(error) or type(error).__name__)

    # A client that reconnects for ever never fails its first connect, so the first one is bounded here.
    try:
        client = await asyncio.wait_for(
            nats.connect(
                url,
                name=name,
                connect_timeout=max(1, int(timeout)),
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.2,
                ping_interval=10,
                error_cb=on_error,
            ),
            timeout,
        )
    except (TimeoutError, nats.errors.Error, OSError) as error:
        detail = str(error) or "no answer"
        raise LogUnavailable(
            f"no NATS server answers at {url} ({detail}); start a cluster with `dorm up`, or name one with --url"
        ) from None
    version = client.connected_server_version
    if (version.major, version.minor) < OLDEST_SERVER:
        await client.close()
        raise LogTooOld(
            f"the NATS server at {url} is {version.major}.{version.minor}.{version.patch}; "
            f"Dorm needs {OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} or later"
        )
    return client


async def _make_streams(client: Client, cluster: str, timeout: float) -> None:
    streams = [
        StreamConfig(
            name=_stream(cluster),
            subjects=[names.log_subjects(cluster)],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            duplicate_window=DUPLICATE_WINDOW_S,
            compression=StoreCompression.S2,
            deny_delete=True,
            deny_purge=True,
            allow_direct=True,
        ),
        StreamConfig(
            name=_report_stream(cluster),
            subjects=[names.reports(cluster)],
            storage=StorageType.FILE,
            max_age=REPORT_AGE_S,
            max_msgs_per_subject=720,
            compression=StoreCompression.S2,
            allow_direct=True,
        ),
    ]
    manager = client.jetstream(timeout=timeout)
    for config in streams:
        assert config.name
        try:
            await manager.stream_info(config.name)
        except nats.js.errors.NotFoundError:
            with _as_log_errors(f"making stream {config.name}"):
                await manager.add_stream(config)
        except (TimeoutError, nats.errors.Error) as error:
            raise _log_error(error, "looking up the log's stream") from None


def _stream(cluster: str) -> str:
    return f"DORM-{cluster}"


def _report_stream(cluster: str) -> str:
    return f"DORM-{cluster}-reports"


class JetStreamLog(EventLog):
    """The cluster's log: a file stream that nobody may delete from."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._stream = _stream(cluster)

    def _jetstream(self, timeout: float = 5.0) -> JetStreamContext:
        return self._client.jetstream(timeout=timeout)

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = 5.0,
    ) -> Appended:
        headers = {"Nats-Expected-Stream": self._stream}
        if msg_id:
            headers["Nats-Msg-Id"] = msg_id
        if expected_last is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected_last)
        _check_size(self._client, body)
        with _as_log_errors("append"):
            ack = await self._jetstream(timeout).publish(subject, body, timeout=timeout, headers=headers)
        return Appended(ack.seq, duplicate=bool(ack.duplicate))

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncIterator[list[Record]]:
        until = None if follow else await self._end_of(subjects)
        while until is None or after < until:
            reader = _Reader(self._client, self._stream, after, subjects)
            try:
                await reader.open()
                while until is None or after < until:
                    batch = await reader.next()
                    if until is not None and batch[-1].seq > until:
                        batch = [record for record in batch if record.seq <= until]
                    if batch:
                        after = batch[-1].seq
                        yield batch
                    elif until is not None:
                        return
            except _ReopenReader as error:
                _log.debug("reading again", after=after, reason=str(error))
                await asyncio.sleep(0.1)
            except LogUnavailable:
                if not follow:
                    raise
                await asyncio.sleep(0.2)
            finally:
                await reader.close()

    async def _end_of(self, subjects: Sequence[str]) -> int:
        """The last sequence that a bounded read has to reach: the last one of these subjects."""
        if not subjects:
            return await self.end()
        last = [await self._last_matching(pattern) for pattern in subjects]
        return max((record.seq for record in last if record), default=0)

    async def end(self) -> int:
        with _as_log_errors("looking up the end of the log"):
            info = await self._jetstream().stream_info(self._stream)
        if info.state.first_seq > 1:
            raise LogDamaged(f"the log begins at {info.state.first_seq}: earlier records were removed behind our back")
        return int(info.state.last_seq)

    async def last_on(self, subject: str) -> Record | None:
        return await self._last_matching(subject)

    async def _last_matching(self, pattern: str) -> Record | None:
        return await _last_message(self._client, self._stream, pattern)

    async def close(self) -> None:
        return None


class _ReopenReader(Exception):
    """The consumer is of no more use; open another one after the last record handed on."""


class _Reader:
    """One pull consumer, from its making to its deletion."""

    def __init__(self, client: Client, stream: str, after: int, subjects: Sequence[str]) -> None:
        self._client = client
        self._stream = stream
        self._after = after
        self._subjects = list(subjects)
        self._inbox = client.new_inbox()
        self._subscription: Any = None
        self._consumer = ""
        self._buffer: list[Record] = []
        self._arrived = asyncio.Event()
        self._broken = ""
        self._delivered = 0
        self._outstanding = 0

    async def open(self) -> None:
        """Raises LogUnavailable or LogRefused."""
        filters: dict[str, Any] = {}
        if len(self._subjects) == 1:
            filters["filter_subject"] = self._subjects[0]
        elif self._subjects:
            filters["filter_subjects"] = self._subjects
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._after + 1,
            ack_policy=AckPolicy.NONE,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_EXPIRES_S * 2,
            **filters,
        )
        with _as_log_errors("opening a reader"):
            info = await self._client.jetstream(timeout=5.0).add_consumer(self._stream, config)
        assert info.name
        self._consumer = info.name
        self._subscription = await self._client.subscribe(self._inbox, cb=self._on_message)
        await self._request()
        await self._request()

    async def _request(self) -> None:
        self._outstanding += _BATCH
        request = {
            "batch": _BATCH,
            "expires": int(_EXPIRES_S * 1e9),
            "idle_heartbeat": int(_HEARTBEAT_S * 1e9),
        }
        try:
            await self._client.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
                json.dumps(request).encode(),
                reply=self._inbox,
            )
        except nats.errors.Error as error:
            raise _ReopenReader(str(error)) from None

    async def _on_message(self, message: Msg) -> None:
        reply = message.reply
        if not reply.startswith("$JS.ACK."):
            self._on_status(message)
        else:
            parts = reply.split(".")
            first = 5 if len(parts) == 9 else 7
            seq, delivered, time = int(parts[first]), int(parts[first + 1]), int(parts[first + 2])
            if delivered != self._delivered + 1 or (not self._subjects and seq != self._after + 1):
                self._broken = self._broken or f"record {seq} after {self._after}"
            elif not self._broken:
                self._delivered, self._after = delivered, seq
                headers = message.headers
                msg_id = headers.get("Nats-Msg-Id", "") if headers else ""
                self._buffer.append(Record(seq, time, message.subject, message.data, msg_id))
        self._arrived.set()

    def _on_status(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status", "")
        if status == "100":  # A heartbeat; flow control is for push consumers.
            return
        if status in ("404", "408"):  # This request is over; how much of it was left is said in a header.
            left = (message.headers or {}).get("Nats-Pending-Messages", "")
            self._outstanding -= int(left) if left.isdigit() else _BATCH
            return
        self._broken = self._broken or f"status {status} {(message.headers or {}).get('Description', '')}"

    async def next(self) -> list[Record]:
        """At least one record, in order; waits for ever.  Raises _ReopenReader."""
        while not self._buffer:
            if self._broken:
                raise _ReopenReader(self._broken)
            if self._outstanding < _BATCH + 1:
                await self._request()
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), _SILENCE_S)
            except TimeoutError:
                raise _ReopenReader("neither records nor heartbeats") from None
        batch, self._buffer = self._buffer, []
        self._outstanding -= len(batch)
        if self._outstanding <= _BATCH:
            await self._request()
        return batch

    async def close(self) -> None:
        with contextlib.suppress(nats.errors.Error):
            if self._subscription is not None:
                await self._subscription.unsubscribe()
        if self._consumer and self._client.is_connected:
            with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError):
                await self._client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}", b"")


class NatsBus:
    """Heartbeats on a stream with an age limit, and questions as plain requests with several answers."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._stream = _report_stream(cluster)

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        _check_size(self._client, body)
        with _as_log_errors("report"):
            await self._client.jetstream(timeout=timeout).publish(subject, body, timeout=timeout)

    async def reports(self, subject: str) -> AsyncIterator[Record]:
        subscription = await self._client.subscribe(subject)
        try:
            async for message in subscription.messages:
                yield Record(0, 0, message.subject, message.data)
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def last_report(self, subject: str) -> Record | None:
        return await _last_message(self._client, self._stream, subject)

    async def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncIterator[bytes]:
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox)
        try:
            await self._client.publish(subject, question, reply=inbox)
            while True:
                try:
                    message = await subscription.next_msg(timeout=timeout)
                except (TimeoutError, nats.errors.TimeoutError):
                    raise LogUnavailable("the agent does not answer; is it running?") from None
                headers = message.headers or {}
                if headers.get("Status") == "503":
                    raise LogUnavailable("no agent answers for this node; is it running?")
                if "Dorm-Refused" in headers:
                    raise LogRefused(headers["Dorm-Refused"])
                if "Dorm-End" in headers:
                    return
                if message.data:
                    yield message.data
        finally:
            # An unsubscribed inbox also tells the answerer to stop: its next piece finds no responders.
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def answer(self, subject: str, answerer: Answerer) -> None:
        async with asyncio.TaskGroup() as tasks:
            subscription = await self._client.subscribe(subject)
            try:
                async for message in subscription.messages:
                    tasks.create_task(self._answer_one(message, answerer))
            finally:
                with contextlib.suppress(nats.errors.Error):
                    await subscription.unsubscribe()

    async def _answer_one(self, message: Msg, answerer: Answerer) -> None:
        """Pieces, with an empty one every second so that the asker knows somebody is there, then an end mark."""
        pieces = aiter(answerer(message.data))
        waiting: asyncio.Future[bytes] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(anext(pieces))
                done, _ = await asyncio.wait({waiting}, timeout=1.0)
                piece = b""
                if done:
                    piece = waiting.result()
                    waiting = None
                if not await self._somebody_listens(message.reply, piece):
                    return
        except StopAsyncIteration:
            await self._client.publish(message.reply, b"", headers={"Dorm-End": "1"})
        except AskRefused as error:
            await self._client.publish(message.reply, b"", headers={"Dorm-Refused": str(error)})
        except nats.errors.Error as error:
            _log.debug("an answer could not be sent", error=str(error))
        finally:
            if waiting is not None:
                waiting.cancel()

    async def _somebody_listens(self, reply: str, piece: bytes) -> bool:
        try:
            if piece:
                await self._client.publish(reply, piece)
            else:
                await self._client.request(reply, b"", timeout=0.2)
        except nats.errors.NoRespondersError:
            return False
        except (TimeoutError, nats.errors.TimeoutError):
            return True
        return True


async def _last_message(client: Client, stream: str, subject: str) -> Record | None:
    try:
        with _as_log_errors("reading the last record"):
            message = await client.jetstream(timeout=5.0).get_last_msg(stream, subject)
    except LogRefused as error:
        if isinstance(error.__cause__, nats.js.errors.NotFoundError):
            return None
        raise
    headers = message.headers or {}
    time = int(message.time.timestamp() * 1_000_000) * 1000 if message.time else 0
    return Record(
        int(message.seq or 0), time, str(message.subject), message.data or b"", headers.get("Nats-Msg-Id", "")
    )


def _check_size(client: Client, body: bytes) -> None:
    if len(body) > client.max_payload:
        raise LogRefused(f"a message of {len(body):,} bytes; the server takes at most {client.max_payload:,}")


def _log_error(error: BaseException, doing: str) -> Exception:
    if isinstance(error, nats.js.errors.APIError):
        if error.err_code in _WRONG_LAST_SEQUENCE:
            return Overtaken(str(error.description))
        if isinstance(error, nats.js.errors.ServiceUnavailableError) and error.err_code != 10077:
            return LogUnavailable(f"{doing}: {error.description}")
        return LogRefused(f"{doing}: {error.description}")
    if isinstance(error, nats.js.errors.NoStreamResponseError):
        return LogUnavailable(f"{doing}: the server has no such stream, or JetStream is off (start it with -js)")
    if isinstance(error, nats.errors.MaxPayloadError):
        return LogRefused(f"{doing}: the message is larger than the server takes")
    return LogUnavailable(f"{doing}: {str(error) or 'the NATS server does not answer'}")


class _as_log_errors(contextlib.AbstractContextManager[None]):
    """Turns what nats-py raises into this project's errors."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, nats.errors.Error | asyncio.TimeoutError | ConnectionError):
            raise _log_error(error, self._doing) from error
