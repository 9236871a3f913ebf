"""What handlers have at hand: one process's fold of one log, and what is computed from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dorm.api.answers import Kept
from dorm.api.connections import Addresses
from dorm.api.following.counted import Counted
from dorm.api.following.courses import Courses
from dorm.api.following.follower import Follower
from dorm.api.following.lives import Lives
from dorm.api.following.masters import MastersWatch
from dorm.api.following.moments import Moments
from dorm.api.following.newest import NewestReports
from dorm.api.following.picture import Pictures
from dorm.api.following.recent import RecentLog
from dorm.api.following.reports import Reports
from dorm.api.following.requester import Requester
from dorm.api.following.threads import Heavy
from dorm.api.identity import Doorkeeper
from dorm.api.items import Encoded
from dorm.api.streams.events import EventStreams
from dorm.api.streams.view import ViewStream
from dorm.client.client import login_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.api.answers import Answer
    from dorm.api.following.archived import Cluster
    from dorm.api.options import Options


class Services:
    """Made once; `run` keeps all of it up to date."""

    def __init__(self, connection: Cluster, options: Options, clock: Callable[[], int]) -> None:
        limits = options.limits
        self.options = options
        self.clock = clock
        self.cluster = connection.cluster
        self.user = options.user or login_name()
        self.connection = connection
        self.follower = Follower(connection.log, connection.cluster)
        self.door = Doorkeeper(self.follower, self.user, clock, everyone=bool(options.archive))
        self.recent = RecentLog(self.follower)
        self.heavy = Heavy(limits.heavy, limits.heavy_waiting)
        self.forks = Heavy(1, 4)
        """What-if simulations: one at a time, beside the other work, since each may take a minute."""
        self.moments = Moments(self.follower, self.heavy, limits.past, clock)
        self.pictures = Pictures(self.follower, self.heavy)
        self.lives = Lives(self.follower, self.recent, self.moments, self.heavy, limits)
        self.courses = Courses(self.recent, connection.log.progress, connection.cluster)
        self.newest = NewestReports(connection.log)
        self.counted = Counted(self.follower)
        self.reports = Reports(connection.bus, connection.cluster)
        self.masters = MastersWatch(connection.leadership, clock)
        self.events = EventStreams(self.follower, self.recent, limits)
        self.view = ViewStream(self.follower, limits)
        self.addresses = Addresses(limits)
        self.answers = Kept(limits.answers)
        self.encoded = Encoded()
        self.computing: dict[tuple[str, bool], asyncio.Task[Answer]] = {}
        """Answers from the present state that are being computed: the same question is answered once."""
        self.writes = asyncio.Semaphore(limits.writes)
        self.follower.on_restart += [self.moments.forget, self.lives.forget, self.encoded.clear]

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
            self.heavy.close()
            self.forks.close()
