"""One webhook: takes its events from its place in the log, and sends each until the endpoint has it.

Delivery is at least once: a record is done only when the endpoint has answered 2xx for all of its events.  Attempts are
counted by the log's server, so a restart continues the schedule.  A server that is killed right after a record was postponed
delivers it too early; the worker then postpones it again, and does not count that.  An event that fails waits for its next
attempt and holds back only its own record; at most `MOST_PENDING` records wait, and then nothing new is tried before one of
them succeeds or is given up.

After the last attempt, about three days after the first, the webhook counts as dead and is disabled, unless other events have
been delivered meanwhile; then only this event is given up.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dorm.webhooks import endpoints
from events.kinds import WebhookTestRequested
from events.log.records import LogClosed, LogError
from events.logger import Logger
from events.positions import logged
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dorm.webhooks.endpoints import Endpoint
    from dorm.webhooks.keys import Keys
    from dorm.webhooks.sending import Measured, Outcome, Sender
    from events.nats.places import Deliveries, Delivery
    from events.positions import Logged

MOST_PENDING = 128
SCHEDULE_S = (
    5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0, 43_200.0, 57_600.0, 86_400.0,
)  # fmt: skip
"""Seconds from each failed attempt to the next; after the last one there is none."""
_SPREAD = 0.2
_EARLY_S = 2.0
"""Seconds by which a record may come earlier than its time: the server keeps times in whole seconds."""
_AGAIN_S = 2.0
_USER_AGENT = "dorm-webhooks"
_log = Logger(__name__)


class Reports(Protocol):
    """A worker's reports on the log.  Each raises the log's errors."""

    async def disable(self, endpoint: Endpoint, code: str, reason: str) -> None: ...

    async def tested(self, endpoint: Endpoint, request: WebhookTestRequested, outcome: Outcome) -> None: ...


class _Postponed(NamedTuple):
    """A record that waits for its next attempt."""

    due: float
    """Loop time at which it is due."""
    early: int
    """Number of deliveries before its time."""


class Worker:
    """Delivers for one endpoint with its present configuration; another configuration gets another worker at the same
    place."""

    longest_pause_s = 86_400.0
    """The longest delay that an endpoint may ask for (`Retry-After`)."""

    def __init__(
        self,
        endpoint: Endpoint,
        place: Deliveries,
        sender: Sender,
        keys: Keys,
        cluster: str,
        *,
        clock: Callable[[], int],
        left_out: Callable[[Logged], Awaitable[bool]],
        reports: Reports,
        measured: Measured,
        schedule_s: tuple[float, ...] = SCHEDULE_S,
        most_pending: int = MOST_PENDING,
    ) -> None:
        """`clock` returns UTC ns; `left_out` returns whether an event has no effect, or repeats another one; at most
        `most_pending` records at its place are
        unfinished at once."""
        self.endpoint = endpoint
        self._place = place
        self._sender = sender
        self._keys = keys
        self._cluster = cluster
        self._clock = clock
        self._left_out = left_out
        self._reports = reports
        self._measured = measured
        self._schedule_s = schedule_s
        self._most_pending = most_pending
        self._partly: dict[int, int] = {}
        """Number of events that the endpoint has, by the sequence of a round that is not done; as many as may be pending."""
        self._postponed: dict[int, _Postponed] = {}
        """Postponed records by sequence; as many as may be pending."""
        self._delivered_after: int = 0
        """The largest sequence that the endpoint has taken since this worker started."""

    async def run(self) -> None:
        """Deliver until cancelled, or until the webhook is disabled.  Waits for a log that does not answer.  Raises
        LogClosed."""
        while True:
            try:
                await self._place.open()
                while True:
                    delivery = await self._place.next()
                    if delivery is not None and not await self._take(delivery):
                        return
            except LogClosed:
                raise
            except LogError as error:
                _log.warning("a webhook waits for the log", webhook=self.endpoint.name, reason=str(error))
                await asyncio.sleep(_AGAIN_S)
            finally:
                await self._place.close()

    async def _take(self, delivery: Delivery) -> bool:
        """Process a record.  Return False once the webhook is disabled."""
        return await self._pass_on(delivery)

    async def _pass_on(self, delivery: Delivery) -> bool:
        """Send the selected events of a record.  Return False once the webhook is disabled."""
        seq, now = delivery.record.seq, asyncio.get_running_loop().time()
        before = self._postponed.get(seq)
        if before is not None and now < before.due - _EARLY_S:
            self._postponed[seq] = before._replace(early=before.early + 1)
            await delivery.retry(before.due - now)
            return True
        failed = await self._send_all(delivery)
        if failed is None:
            await self._done(delivery)
            return True
        if failed.gone:
            await self._reports.disable(
                self.endpoint, "webhook.gone", "the endpoint answers 410: it wants nothing more"
            )
            await self._done(delivery)
            return False
        attempt = delivery.attempt - (before.early if before is not None else 0)
        if attempt <= len(self._schedule_s):
            asked_s = min(failed.retry_after_s, self.longest_pause_s)
            await self._postpone(delivery, max(self._pause_s(seq, attempt), asked_s))
            return True
        return await self._give_up(delivery, attempt, failed)

    async def _done(self, delivery: Delivery) -> None:
        self._postponed.pop(delivery.record.seq, None)
        await delivery.done()

    async def _postpone(self, delivery: Delivery, pause_s: float) -> None:
        seq = delivery.record.seq
        before = self._postponed.pop(seq, None)
        due = asyncio.get_running_loop().time() + pause_s
        self._postponed[seq] = _Postponed(due, before.early if before is not None else 0)
        while len(self._postponed) > self._most_pending:
            del self._postponed[next(iter(self._postponed))]
        await delivery.retry(pause_s)

    async def _send_all(self, delivery: Delivery) -> Outcome | None:
        """Send the events of a record that the endpoint does not have yet.  Return the failure that ended it, or None."""
        record = delivery.record
        wanted = [event for event in logged(record) if endpoints.wants(self.endpoint, event.event)]
        if not wanted or await self._left_out(wanted[0]):
            return None
        for index in range(self._partly.get(record.seq, 0), len(wanted)):
            await delivery.working()
            outcome = await self._send(wanted[index])
            if isinstance(test := wanted[index].event, WebhookTestRequested):
                await self._reports.tested(self.endpoint, test, outcome)
            elif not outcome.delivered:
                return outcome
            self._note(record.seq, index + 1, len(wanted))
        return None

    def _note(self, seq: int, have: int, wanted: int) -> None:
        self._delivered_after = max(self._delivered_after, seq)
        if have < wanted:
            self._partly[seq] = have
        else:
            self._partly.pop(seq, None)
        while len(self._partly) > MOST_PENDING:
            del self._partly[next(iter(self._partly))]

    async def _send(self, event: Logged) -> Outcome:
        return await self._post(
            self.endpoint.url, endpoints.message_id(self._cluster, event), endpoints.body(event), event.time
        )

    async def _post(self, url: str, message: str, body: bytes, time: int) -> Outcome:
        """Sign and send; `time` is when the event was stored (UTC ns)."""
        now = self._clock()
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": _USER_AGENT,
            "webhook-id": message,
            "webhook-timestamp": str(now // 10**9),
            "webhook-signature": self._keys.signatures(self.endpoint, message, body, now),
        }
        began = asyncio.get_running_loop().time()
        outcome = await self._sender.send(url, headers, body)
        took_s = asyncio.get_running_loop().time() - began
        self._measured.attempted(outcome, took_s, (self._clock() - time) / SECOND)
        _log.debug("webhook", webhook=self.endpoint.name, id=message, status=outcome.status, reason=outcome.reason)
        return outcome

    def _pause_s(self, seq: int, attempt: int) -> float:
        """The schedule's pause with some jitter, so that events that failed together are not retried together for days."""
        digest = hashlib.blake2b(f"{self.endpoint.name}.{seq}".encode(), digest_size=4).digest()
        part = int.from_bytes(digest, "big") / 2**32
        return self._schedule_s[attempt - 1] * (1 + _SPREAD * part)

    async def _give_up(self, delivery: Delivery, attempt: int, failed: Outcome) -> bool:
        seq = delivery.record.seq
        if self._delivered_after > seq:
            _log.warning("a webhook gives up an event", webhook=self.endpoint.name, seq=seq, reason=failed.reason)
            self._measured.given_up += 1
            await self._done(delivery)
            return True
        tries = f"{attempt} attempts over days failed; the last one: {failed.reason}"
        await self._reports.disable(self.endpoint, "webhook.dead", tries)
        return False
