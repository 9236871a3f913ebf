"""Readers' places in the log that the server keeps: durable consumers with an acknowledgement for each record.

`Deliveries` is one place, and the records that come from it.  Records that are not acknowledged come again: at the
time that `Delivery.retry` asks for, or some time after their reader was killed.  Only a limited number may be in that
state at a time; beyond that, nothing new comes.  The place of a reader that fails for days therefore takes no memory
in any process, and on the server only a position and those records.  `Places` has all places of one cluster's log, by
name.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from events.log.records import Record
from events.nats.link import as_log_errors
from events.nats.reader import record_at
from events.nats.settings import UNUSED_S
from events.nats.streams import log_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerInfo

    from events.nats.link import Link


# --- one place --------------------------------------------------------------------------------------------------------

TIMEOUT_S = 5.0
AGAIN_S = 60.0
"""Seconds after which an unacknowledged record comes again: longer than a reader takes for one of its events."""
_IDLE_S = 10.0


class Delivery:
    """One record, once."""

    def __init__(self, record: Record, attempt: int, message: Msg) -> None:
        self.record = record
        self.attempt = attempt
        """Number of the attempt, from 1, which counts those of readers that were killed as well."""
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


# --- all places -------------------------------------------------------------------------------------------------------

WEBHOOK = "webhook-"
"""Prefix of the names of webhooks' places."""


class Standing(NamedTuple):
    """Where a reader is."""

    pending: int
    """Records that came and are not done."""
    unread: int
    """Records that have not come yet."""


class Places:
    """The durable readers of one cluster's log."""

    def __init__(self, link: Link, cluster: str, imported: int) -> None:
        self._link = link
        self._cluster = cluster
        self._imported = imported

    def reader(
        self, name: str, subjects: Sequence[str], *, after: int, most: int, again_s: float = AGAIN_S
    ) -> Deliveries:
        return Deliveries(
            self._link,
            self._cluster,
            name,
            subjects,
            after=after,
            most=most,
            again_s=again_s,
            imported=self._imported,
        )

    async def names(self, prefix: str) -> list[str]:
        """Return the names of all places that start so.  Raises LogUnavailable, LogRefused."""
        return sorted([info.name async for info in self._infos(prefix)])

    async def needed_from(self, prefix: str) -> int | None:
        """Return the first sequence that a reader at one of these places may have yet to see; None if all of them have seen
        everything.  Raises LogUnavailable, LogRefused."""
        sequences: list[int] = []
        async for info in self._infos(prefix):
            # A reader that waits for nothing has seen all, however far back its last record is.
            place = info.ack_floor if info.num_ack_pending else info.delivered if info.num_pending else None
            if place is not None:
                sequences.append((place.stream_seq or 0) + 1)
        return min(sequences, default=None)

    async def _infos(self, prefix: str) -> AsyncIterator[ConsumerInfo]:
        manager = self._link.jetstream(timeout=TIMEOUT_S)
        offset = 0
        with as_log_errors("listing places in the log"):
            while page := await manager.consumers_info(log_stream(self._cluster), offset):
                offset += len(page)
                for info in page:
                    if info.name.startswith(prefix):
                        yield info

    async def standing(self, name: str) -> Standing | None:
        """Return where a reader is; None if there is none.  Raises LogUnavailable, LogRefused."""
        with as_log_errors("looking at a place in the log"):
            try:
                info = await self._link.jetstream(timeout=TIMEOUT_S).consumer_info(log_stream(self._cluster), name)
            except nats.js.errors.NotFoundError:
                return None
        return Standing(info.num_ack_pending or 0, info.num_pending or 0)

    async def remove(self, name: str) -> None:
        """Forget a place.  Raises LogUnavailable, LogRefused."""
        with as_log_errors("removing a place in the log"), contextlib.suppress(nats.js.errors.NotFoundError):
            await self._link.jetstream(timeout=TIMEOUT_S).delete_consumer(log_stream(self._cluster), name)
