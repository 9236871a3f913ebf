"""A webhook for `app.notify`: sends the notifications that apps request, each to the URL of its spec.

Its place in the log, its signatures and its bounds are those of any webhook.  The difference is that its endpoints belong to
tenants: a failing one is retried for some minutes and then given up, and never disables the webhook.

No tenant's endpoints delay another's notifications, however slow they are and however many fail.  Several records are in
progress at once, but one after the other for each tenant.  Of the records in progress, and of those that wait for their
next attempt, one tenant has at most as many as it leaves free; further ones are tried later, or given up.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from dorm.webhooks.endpoints import Allowance, may_concern, notifications
from dorm.webhooks.sending import Outcome
from dorm.webhooks.worker import Worker
from events.kinds import WebhookTestRequested
from events.limits import Shares
from events.log.records import LogError
from events.logger import Logger
from events.nats.places import AGAIN_S
from events.positions import logged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Any

    from dorm.core.state import App
    from dorm.webhooks.endpoints import Notification
    from events.nats.places import Delivery

SCHEDULE_S = (5.0, 30.0, 120.0, 600.0)
"""Seconds from each failed attempt to the next; after the last one the notification is given up."""
MOST_NOT_DONE = 1024
"""The largest number of unfinished records; half of them may wait for another attempt: there is always room for new
ones."""
_AT_ONCE = 64
"""Records in progress at once."""
_HOLDS = 4
"""Number of times that a record in progress is held within the time after which the server would give it out again."""
_log = Logger(__name__)


class _Waiting:
    """The remaining notifications of one record, while it waits for its next attempt."""

    def __init__(self) -> None:
        self.have: set[str] = set()
        """Messages that were sent, or left out."""
        self.tenants: set[str] = set()
        """Whose notifications it waits for; each has a share of all records that wait."""


class Notifier(Worker):
    """Delivers the notifications under one webhook's URL."""

    longest_pause_s = SCHEDULE_S[-1]

    def __init__(
        self, *given: Any, find: Callable[[int, str], Awaitable[App | None]], again_s: float = AGAIN_S, **more: Any
    ) -> None:
        """`find` returns an app by its id as it is after a record of this sequence.  The server gives out a record again that
        was not held for `again_s` seconds."""
        super().__init__(*given, **{"schedule_s": SCHEDULE_S, **more})
        self._find = find
        self._hold_s = again_s / _HOLDS
        self._allowance = Allowance(asyncio.get_running_loop().time)
        self._waiting: dict[int, _Waiting] = {}
        """Waiting records by sequence."""
        self._waits = Shares(MOST_NOT_DONE // 2)
        self._working = Shares(_AT_ONCE)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by tenant: it has its notifications in the order of the log, except those that failed."""
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, delivery: Delivery) -> bool:
        """Process a record concurrently with others."""
        await self._free.acquire()
        task = asyncio.create_task(self._work(delivery))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._free.release())
        return True

    async def _work(self, delivery: Delivery) -> None:
        seq = delivery.record.seq
        try:
            await self._pass_on(delivery)
        except LogError as error:  # It comes again.
            _log.warning("a notification waits for the log", webhook=self.endpoint.name, seq=seq, reason=str(error))
        except Exception:
            _log.exception("a notification can't be delivered; please report this")

    async def _send_all(self, delivery: Delivery) -> Outcome | None:
        record = delivery.record
        wanted = [event for event in logged(record) if may_concern(event.event)]
        if any(isinstance(event.event, WebhookTestRequested) for event in logged(record)):
            return await super()._send_all(delivery)
        if not wanted or await self._left_out(wanted[0]):
            return None
        apps = {app.id: app for app in [await self._find(record.seq, id) for id in _named(wanted)] if app is not None}
        before = self._forget(record.seq)
        of: dict[str, list[Notification]] = {}
        for event in wanted:
            for each in notifications(self.endpoint.url, self._cluster, event, apps.get):
                if each.message not in before.have:
                    of.setdefault(each.tenant, []).append(each)
        now = self._waiting[record.seq] = _Waiting()
        now.have = before.have
        async with self._held(delivery), asyncio.TaskGroup() as tasks:
            parts = [tasks.create_task(self._send_of(tenant, some, now)) for tenant, some in of.items()]
        failed = next((failure for part in parts if (failure := part.result()) is not None), None)
        if failed is None:
            self._forget(record.seq)
        return failed

    @contextlib.asynccontextmanager
    async def _held(self, delivery: Delivery) -> AsyncIterator[None]:
        """Keep the server from giving out a record again, however long its notifications wait for their tenants' turns."""
        over = asyncio.Event()

        async def hold() -> None:
            while not over.is_set():
                with contextlib.suppress(LogError):  # Then it comes again, and is sent once more.
                    await delivery.working()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._hold_s):
                        await over.wait()

        holding = asyncio.create_task(hold())
        try:
            yield
        finally:
            over.set()
            await holding

    async def _send_of(self, tenant: str, notifications: list[Notification], now: _Waiting) -> Outcome | None:
        """Send a tenant's part of a record, noting completed deliveries in `now`.  Return the failure that the record
        waits for."""
        failed: Outcome | None = None
        if not self._working.has_room_for(tenant):
            failed = Outcome(0, "too many of its tenant's notifications are under way")
        else:
            with self._working.held(tenant):
                async with self._turns.setdefault(tenant, asyncio.Lock()):
                    for notification in notifications:
                        outcome = await self._notify(notification)
                        if outcome is None or outcome.delivered or outcome.gone:
                            now.have.add(notification.message)
                        else:
                            failed = outcome
        if failed is None:
            return None
        if not self._waits.has_room_for(tenant):
            self._measured.given_up += 1
            _log.warning("notifications are given up: their tenant has too many", tenant=tenant, reason=failed.reason)
            return None
        self._waits.take(tenant)
        now.tenants.add(tenant)
        return failed

    async def _notify(self, notification: Notification) -> Outcome | None:
        """Send a notification; None if its tenant has exceeded its limit."""
        if not self._allowance.take(notification.tenant):
            self._measured.given_up += 1
            _log.warning(
                "a notification is left out: its tenant has too many", tenant=notification.tenant, app=notification.app
            )
            return None
        return await self._post(notification.url, notification.message, notification.body, notification.time)

    def _forget(self, seq: int) -> _Waiting:
        """Remove a record from those that wait, and return its entry."""
        before = self._waiting.pop(seq, None) or _Waiting()
        for tenant in before.tenants:
            self._waits.leave(tenant)
        return before

    async def _give_up(self, delivery: Delivery, attempt: int, failed: Outcome) -> bool:
        del attempt
        seq = delivery.record.seq
        _log.warning("a notification is given up", webhook=self.endpoint.name, seq=seq, reason=failed.reason)
        self._measured.given_up += 1
        self._forget(seq)
        await self._done(delivery)
        return True


def _named(wanted: list[Any]) -> list[str]:
    """Return the apps that events are about."""
    apps: dict[str, None] = {}
    for event in wanted:
        changes = getattr(event.event, "changes", None)
        apps.update(dict.fromkeys([change.app for change in changes] if changes is not None else [event.event.app]))
    return list(apps)
