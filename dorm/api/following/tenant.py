"""A cluster as one tenant sees it, for services that follow a view of the log."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from events.log.interface import Bus
from replay.tenants.log import TenantLog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from dorm.api.following.archived import Cluster
    from events.log.interface import Answerer
    from events.log.records import Record
    from replay.tenants.views import Views


class TenantBus(Bus):
    """The bus as a tenant sees it: from a node's heartbeat, only data about the tenant's own containers."""

    def __init__(self, bus: Bus, views: Views, tenant: str) -> None:
        self._bus = bus
        self._views = views
        self._tenant = tenant

    @property
    def guarded(self) -> bool:
        return self._bus.guarded

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        await self._bus.publish_report(subject, body, timeout=timeout)

    async def reports(self, subject: str) -> AsyncGenerator[Record, None]:
        async with contextlib.aclosing(self._bus.reports(subject)) as reports:
            async for record in reports:
                if (made := self._views.report(record, self._tenant)) is not None:
                    yield made

    async def last_report(self, subject: str) -> Record | None:
        record = await self._bus.last_report(subject)
        return self._views.report(record, self._tenant) if record is not None else None

    def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncGenerator[bytes, None]:
        return self._bus.ask(subject, question, timeout=timeout)

    async def answer(self, subject: str, answerer: Answerer) -> None:
        await self._bus.answer(subject, answerer)


class TenantCluster:
    """A cluster as a tenant sees it."""

    def __init__(self, connection: Cluster, views: Views, tenant: str) -> None:
        self.cluster = connection.cluster
        self.log = TenantLog(connection.log, views, tenant)
        self.bus: Bus = TenantBus(connection.bus, views, tenant)
        self.leadership = connection.leadership
