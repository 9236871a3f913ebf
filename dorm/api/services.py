"""The services for handlers: one process's fold of one log, and everything computed from it.

A plain user's requests are served by services of the user's tenant, which follow a log without other tenants' data
(`replay.tenants`), through the same routes. No handler can therefore show what a user may not read. These services
are created on demand, and the least recently used ones end if there are too many.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from dorm.api.clusters import TenantCluster
from dorm.api.connections import Addresses
from dorm.api.event_pages import Encoded, EventPages
from dorm.api.follower import Counted, Follower, RecentLog, Requester
from dorm.api.identity import Doorkeeper
from dorm.api.lives import Lives
from dorm.api.past_folds import Moments, Pasts, Pictures
from dorm.api.reports import Courses, MastersWatch, NewestReports, Reports, ServersWatch
from dorm.api.responses import Kept
from dorm.api.streams import EventStreams, ViewStream
from dorm.api.threads import Heavy, Turns
from dorm.client.client import login_name
from dorm.client.masters import answering
from events.log.records import LogError
from events.logger import Logger
from events.nats.connection import Connection
from replay.tenants.projection import key_of
from replay.tenants.shared_views import Views

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.api.clusters import Cluster
    from dorm.api.options import Options
    from dorm.api.responses import Answer
    from dorm.api.streams import Shared

_MOST_TENANTS = 32
"""Tenants that have services at once: each has a state of its own."""
_WAITING_WRITES = 4096
_READY_S = 10.0
_log = Logger(__name__)


class Services:
    """Made once; `run` keeps all of it up to date."""

    def __init__(
        self,
        connection: Cluster,
        options: Options,
        clock: Callable[[], int],
        *,
        whole: Services | None = None,
        tenant: str = "",
    ) -> None:
        """`whole`: the services of the whole log, if these are of one tenant's view.  Who may do what, and the bounds on
        expensive work, are theirs."""
        limits = options.limits
        self.options = options
        self.clock = clock
        self.cluster = connection.cluster
        self.user = options.user or login_name()
        self.connection = connection
        self.follower = Follower(connection.log, connection.cluster)
        self.door: Doorkeeper = (
            whole.door
            if whole
            else Doorkeeper(self.follower, self.user, clock, everyone=bool(options.archive), key=options.pseudonyms)
        )
        self.recent = RecentLog(self.follower)
        self.heavy: Heavy = whole.heavy.of(tenant) if whole else Heavy(limits.heavy, limits.heavy_waiting)
        self.forks: Heavy = whole.forks.of(tenant) if whole else Heavy(1, 4)
        """What-if simulations: one at a time, in addition to the other work, since each may take a minute."""
        self.moments = Moments(self.follower, self.heavy, limits.past, clock)
        self.pictures = Pictures(self.follower, self.heavy)
        self.lives = Lives(self.follower, self.recent, self.moments, self.heavy, limits)
        self.courses = Courses(self.recent, connection.log.progress, connection.cluster)
        self.pasts = Pasts(connection.log)
        self.newest = NewestReports(connection.log)
        self.counted = Counted(self.follower)
        self.reports = Reports(connection.bus, connection.cluster)
        ask = partial(answering, connection) if isinstance(connection, Connection) else None
        self.masters = MastersWatch(connection.leadership, clock, ask)
        self.servers = ServersWatch(connection.inspect if isinstance(connection, Connection) else None)
        self.events = EventStreams(self.follower, self.recent, limits)
        self.view = ViewStream(self.follower, limits, lambda: self.newest.reports)
        self.addresses: Addresses = whole.addresses if whole else Addresses(limits)
        self.shared: dict[str, Shared] = whole.shared if whole else {}
        """Open streams with parts, by name."""
        self.answers = Kept(limits.answers)
        self.encoded = Encoded()
        self.event_pages = EventPages(self.follower, self.recent, self.encoded.of)
        self.computing: dict[tuple[str, bool], asyncio.Task[Answer]] = {}
        """Answers from the present state that are being computed: the same question is answered once."""
        self.writes: Turns = (
            whole.writes if whole else Turns(limits.writes, _WAITING_WRITES, of_one=max(1, limits.writes // 2))
        )
        self._whole = whole
        self.follower.on_restart += [self.moments.forget, self.lives.forget, self.encoded.clear, self.pasts.forget]

    def requester(self, user: str) -> Requester:
        """Return a client for one request."""
        return Requester(self.follower, self.connection.bus, user, self.clock)

    async def run(self) -> None:
        """Follow the log until cancelled.  Raises LogClosed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.follower.run(), name="follower")
                tasks.create_task(self.masters.run(), name="masters")
                tasks.create_task(self.newest.run(), name="newest reports")
                tasks.create_task(self.events.run(), name="event streams")
                tasks.create_task(self.view.run(), name="view stream")
        finally:
            if self._whole is None:
                self.heavy.close()
                self.forks.close()


class Tenants:
    """The services of each tenant."""

    def __init__(self, services: Services) -> None:
        """`services` are those of users who may read everything."""
        self._services = services
        self._views = Views(services.connection.log, key_of(services.options.pseudonyms or secrets.token_bytes(32)))
        self._viewing: asyncio.Task[None] | None = None
        self._made: OrderedDict[str, tuple[Services, asyncio.Task[None]]] = OrderedDict()

    async def of(self, user: str) -> Services:
        """Return the services for a user's requests, once they have read the log.  Raises Unavailable."""
        tenant = self._services.door.views_of(user)
        if not tenant:
            return self._services
        made = self._made.get(tenant)
        if made is None or made[1].done():
            made = self._make(tenant)
        self._made.move_to_end(tenant)
        services = made[0]
        if not services.follower.ready:
            await services.follower.reach(0, _READY_S)
        return services

    def _make(self, tenant: str) -> tuple[Services, asyncio.Task[None]]:
        if self._viewing is None or self._viewing.done():
            self._viewing = asyncio.create_task(self._views.run(), name="views")
        while len(self._made) >= _MOST_TENANTS:
            _, (old, running) = self._made.popitem(last=False)
            _end(old, running)
        own = self._services
        services = Services(
            TenantCluster(own.connection, self._views, tenant), own.options, own.clock, whole=own, tenant=tenant
        )
        self._made[tenant] = made = services, asyncio.create_task(_unless_it_fails(services), name=f"view of {tenant}")
        return made

    def close(self) -> None:
        """End all of them."""
        if self._viewing is not None:
            self._viewing.cancel()
        for services, running in self._made.values():
            _end(services, running)
        self._made.clear()


def _end(services: Services, running: asyncio.Task[None]) -> None:
    services.events.finish()
    services.view.finish()
    running.cancel()


async def _unless_it_fails(services: Services) -> None:
    """A view that cannot be followed is made again with the next request."""
    try:
        await services.run()
    except* (LogError, OSError) as failed:
        _log.warning("a tenant's view cannot be followed", reason=str(failed.exceptions[0]))
