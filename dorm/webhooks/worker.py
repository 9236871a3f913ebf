"""One webhook: takes its events from its place in the log, and sends each until the endpoint has it.

Delivery is at least once: a record is done only when the endpoint has answered 2xx for all of its events.  Attempts are
counted by the log's server, so a restart goes on with the schedule.  An event that fails waits for its next attempt and
holds back nothing but its record; at most `MOST_PENDING` records wait so, then nothing new is tried before one of them
succeeds or is given up.

After the last attempt, some three days after the first, the webhook counts as dead and is disabled, unless other events have
got through meanwhile: then that one event is given up.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Protocol

from dorm.webhooks import choosing
from events.kinds import WebhookTestRequested
from events.log.records import LogClosed, LogError
from events.logger import Logger
from events.positions import logged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dorm.webhooks.endpoints import Endpoint
    from dorm.webhooks.keys import Keys
    from dorm.webhooks.sending import Outcome, Sender
    from events.nats.places.deliveries import Deliveries, Delivery
    from events.positions import Logged

MOST_PENDING = 128
SCHEDULE_S = (
    5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0, 43_200.0, 57_600.0, 86_400.0,
)  # fmt: skip
"""Seconds from each failed attempt to the next; after the last one there is none."""
_SPREAD = 0.2
_AGAIN_S = 2.0
_USER_AGENT = "dorm-webhooks"
_log = Logger(__name__)


class Reports(Protocol):
    """What a worker reports on the log.  Each raises the log's errors."""

    async def disable(self, endpoint: Endpoint, code: str, reason: str) -> None: ...

    async def tested(self, endpoint: Endpoint, request: WebhookTestRequested, outcome: Outcome) -> None: ...


class Worker:
    """Delivers for one endpoint, as it is configured now; another configuration is another worker at the same place."""

    def __init__(
        self,
        endpoint: Endpoint,
        place: Deliveries,
        sender: Sender,
        keys: Keys,
        cluster: str,
        *,
        clock: Callable[[], int],
        is_void: Callable[[int], Awaitable[bool]],
        reports: Reports,
        schedule_s: tuple[float, ...] = SCHEDULE_S,
    ) -> None:
        """`clock` returns UTC ns; `is_void` says whether the round with a sequence counts for nothing."""
        self.endpoint = endpoint
        self._place = place
        self._sender = sender
        self._keys = keys
        self._cluster = cluster
        self._clock = clock
        self._is_void = is_void
        self._reports = reports
        self._schedule_s = schedule_s
        self._partly: dict[int, int] = {}
        """By sequence of a round that is not done, how many of its events the endpoint has; as many as may be pending."""
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
                    if delivery is not None and not await self._deliver(delivery):
                        return
            except LogClosed:
                raise
            except LogError as error:
                _log.warning("a webhook waits for the log", webhook=self.endpoint.name, reason=str(error))
                await asyncio.sleep(_AGAIN_S)
            finally:
                await self._place.close()

    async def _deliver(self, delivery: Delivery) -> bool:
        """Send what is wanted of a record.  Return False once the webhook is disabled."""
        failed = await self._send_all(delivery)
        if failed is None:
            await delivery.done()
            return True
        if failed.gone:
            await self._reports.disable(
                self.endpoint, "webhook.gone", "the endpoint answers 410: it wants nothing more"
            )
            await delivery.done()
            return False
        if delivery.attempt <= len(self._schedule_s):
            await delivery.retry(max(self._pause_s(delivery), failed.retry_after_s))
            return True
        return await self._give_up(delivery, failed)

    async def _send_all(self, delivery: Delivery) -> Outcome | None:
        """Send the events of a record that the endpoint does not have yet.  Return the failure that ended it, or None."""
        record = delivery.record
        wanted = [one for one in logged(record) if choosing.wants(self.endpoint, one.event)]
        if not wanted or (wanted[0].round is not None and await self._is_void(record.seq)):
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

    async def _send(self, one: Logged) -> Outcome:
        message, body, now = choosing.message_id(self._cluster, one), choosing.body(one), self._clock()
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": _USER_AGENT,
            "webhook-id": message,
            "webhook-timestamp": str(now // 10**9),
            "webhook-signature": self._keys.signatures(self.endpoint, message, body, now),
        }
        outcome = await self._sender.send(self.endpoint.url, headers, body)
        _log.debug("webhook", webhook=self.endpoint.name, id=message, status=outcome.status, reason=outcome.reason)
        return outcome

    def _pause_s(self, delivery: Delivery) -> float:
        """The schedule's pause, spread a little, so that what failed together is not tried together for days."""
        digest = hashlib.blake2b(f"{self.endpoint.name}.{delivery.record.seq}".encode(), digest_size=4).digest()
        part = int.from_bytes(digest, "big") / 2**32
        return self._schedule_s[delivery.attempt - 1] * (1 + _SPREAD * part)

    async def _give_up(self, delivery: Delivery, failed: Outcome) -> bool:
        seq = delivery.record.seq
        if self._delivered_after > seq:
            _log.warning("a webhook gives up an event", webhook=self.endpoint.name, seq=seq, reason=failed.reason)
            await delivery.done()
            return True
        tries = f"{delivery.attempt} attempts over days failed; the last one: {failed.reason}"
        await self._reports.disable(self.endpoint, "webhook.dead", tries)
        return False
