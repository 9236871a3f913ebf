"""A reader's place in the log that the server keeps: a durable consumer with an acknowledgement for each record.

Records that are not acknowledged come again: at the time that `Delivery.retry` asks for, or some time after their
reader was killed.  Only a limited number may be in that state at a time; beyond that, nothing new comes. The place of
a reader that fails for days therefore takes no memory in any process, and on the server only a position and those
records.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from events.log.records import Record
from events.nats.link import as_log_errors
from events.nats.reader import record_at
from events.nats.settings.limits import UNUSED_S
from events.nats.streams import log_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

    from events.nats.link import Link

TIMEOUT_S = 5.0
AGAIN_S = 60.0
"""Seconds after which an unacknowledged record comes again: longer than a reader takes for one of its events."""
_IDLE_S = 10.0


class Delivery:
    """One record, once."""

    def __init__(self, record: Record, attempt: int, message: Msg) -> None:
        self.record = record
        self.attempt = attempt
        """From 1; counts those of readers that were killed as well."""
        self._message = message

    async def done(self) -> None:
        """It never comes again. Raises LogUnavailable if that is uncertain."""
        with as_log_errors("acknowledging a record"):
            await self._message.ack_sync(timeout=TIMEOUT_S)

    async def working(self) -> None:
        """It is being worked on: the time after which it comes again starts once more.  Raises LogUnavailable."""
        with as_log_errors("holding a record"):
            await self._message.in_progress()

    async def retry(self, after_s: float) -> None:
        """It comes again after this many seconds. Raises LogUnavailable."""
        with as_log_errors("postponing a record"):
            await self._message.nak(delay=max(0.001, after_s))


class Deliveries:
    """One durable reader: `await open()`, then `await next()` again and again."""

    def __init__(
        self,
        link: Link,
        cluster: str,
        name: str,
        subjects: Sequence[str],
        *,
        after: int,
        most: int,
        again_s: float,
        imported: int,
    ) -> None:
        """`name` stays with the place: letters, digits, `-` and `_`.  A new reader begins after the sequence `after`;
        at most `most` records are unacknowledged at a time; an unacknowledged record comes again after `again_s`
        seconds."""
        self._link = link
        self._stream = log_stream(cluster)
        self._imported = imported
        self._config = ConsumerConfig(
            name=name,
            durable_name=name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=again_s,
            max_deliver=-1,
            max_ack_pending=most,
            inactive_threshold=UNUSED_S,
            filter_subjects=list(subjects),
        )
        self._subscription: JetStreamContext.PullSubscription | None = None

    async def open(self) -> None:
        """Find the place, or make it.  Raises LogUnavailable, LogRefused."""
        name = str(self._config.durable_name)
        with as_log_errors("opening a place in the log"):
            manager = self._link.jetstream(timeout=TIMEOUT_S)
            await manager.add_consumer(self._stream, self._config)
            self._subscription = await manager.pull_subscribe_bind(consumer=name, stream=self._stream)

    async def next(self) -> Delivery | None:
        """Return the next record, None if none came for some seconds.  Raises LogUnavailable, LogDamaged."""
        assert self._subscription is not None
        with as_log_errors("reading a place in the log"):
            try:
                (message,) = await self._subscription.fetch(1, timeout=_IDLE_S)
            except nats.errors.TimeoutError:
                return None
        return await self._delivery(message)

    async def _delivery(self, message: Msg) -> Delivery:
        # $JS.ACK.<stream>.<consumer>.<tries>.<seq>.<delivered>.<time>.<pending>, or with a domain and an account in front.
        parts = message.reply.split(".")
        attempt, seq, _, time = (int(part) for part in (parts[4:8] if len(parts) == 9 else parts[6:10]))
        record = Record(seq, time, message.subject, message.data, (message.headers or {}).get("Nats-Msg-Id", ""))
        if seq <= self._imported:  # Its own time and id are in headers.
            record = await record_at(self._link, self._stream, seq, imported=self._imported) or record
        return Delivery(record, attempt, message)

    async def close(self) -> None:
        """Leave; the place stays."""
        if self._subscription is not None:
            with contextlib.suppress(Exception):
                await self._subscription.unsubscribe()
