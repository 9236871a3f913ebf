"""A webhook for `app.notify`: sends what apps asked for, each to the URL of its spec.

Its place in the log, its signatures and its bounds are those of any webhook.  What differs follows from whose endpoints they
are: one that fails is tried for some minutes and then given up, and never disables the webhook, for it is one tenant's; and
what one record has for one tenant does not wait for another's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dorm.webhooks.notifying import Allowance, may_concern, notifications
from dorm.webhooks.worker import MOST_PENDING, Worker
from events.kinds import WebhookTestRequested
from events.logger import Logger
from events.positions import logged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from dorm.core.state import App
    from dorm.webhooks.notifying import Notification
    from dorm.webhooks.sending import Outcome
    from events.nats.places.deliveries import Delivery

SCHEDULE_S = (5.0, 30.0, 120.0, 600.0)
"""Seconds from each failed attempt to the next; after the last one the notification is given up."""
_log = Logger(__name__)


class Notifier(Worker):
    """Delivers the notifications under one webhook's URL."""

    def __init__(self, *given: Any, find: Callable[[int, str], Awaitable[App | None]], **more: Any) -> None:
        """`find` returns an app by its id as it is after a record of this sequence."""
        super().__init__(*given, **{"schedule_s": SCHEDULE_S, **more})
        self._find = find
        self._allowance = Allowance(asyncio.get_running_loop().time)
        self._have: dict[int, set[str]] = {}
        """By sequence of a record that is not done, what was sent, or left out; as many as may be pending."""

    async def _send_all(self, delivery: Delivery) -> Outcome | None:
        record = delivery.record
        wanted = [one for one in logged(record) if may_concern(one.event)]
        if any(isinstance(one.event, WebhookTestRequested) for one in logged(record)):
            return await super()._send_all(delivery)
        if not wanted or await self._left_out(wanted[0]):
            return None
        apps = {app.id: app for app in [await self._find(record.seq, id) for id in _named(wanted)] if app is not None}
        have, failed = self._have.pop(record.seq, set()), None
        for one in wanted:
            for each in notifications(self.endpoint.url, self._cluster, one, apps.get):
                if each.message in have:
                    continue
                await delivery.working()
                outcome = await self._notify(each)
                if outcome is None or outcome.delivered or outcome.gone:
                    have.add(each.message)
                else:
                    failed = outcome
        if failed is not None:
            self._have[record.seq] = have
            while len(self._have) > MOST_PENDING:
                del self._have[next(iter(self._have))]
        else:
            self._delivered_after = max(self._delivered_after, record.seq)
        return failed

    async def _notify(self, one: Notification) -> Outcome | None:
        """Send one; None where its tenant has had too many sent."""
        if not self._allowance.take(one.tenant):
            self._measured.given_up += 1
            _log.warning("a notification is left out: its tenant has too many", tenant=one.tenant, app=one.app)
            return None
        return await self._post(one.url, one.message, one.body, one.time)

    async def _give_up(self, delivery: Delivery, attempt: int, failed: Outcome) -> bool:
        del attempt
        seq = delivery.record.seq
        _log.warning("a notification is given up", webhook=self.endpoint.name, seq=seq, reason=failed.reason)
        self._measured.given_up += 1
        self._have.pop(seq, None)
        await self._done(delivery)
        return True


def _named(wanted: list[Any]) -> list[str]:
    """Return the apps that events are about."""
    found: dict[str, None] = {}
    for one in wanted:
        changes = getattr(one.event, "changes", None)
        found.update(dict.fromkeys([change.app for change in changes] if changes is not None else [one.event.app]))
    return list(found)
