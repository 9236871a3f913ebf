"""What the API reads next to the log, which holds only what decisions need.

Heartbeats: the resource use that nodes last reported for their containers, read on request.  The server keeps heartbeats
for a short time, so only the present has them.  CPU time is counted from a container's start, so cores in use follow from
two reports.  The report before is kept for each node that was asked about; if there is none yet, the mean since the
container's start stands in.

Progress: the newest report of each app is merged into answers about the present, and the course of an app's work is read
once, thinned, and continued when it is asked for again.  The log has marks, and the stream of progress the reports between
them; a course is both, in the order of their times.

Masters: who leads by the lease, and who follows, looked up from time to time, so that no request waits for it.

Servers: how the NATS servers and their streams are, looked up when somebody asks and kept for some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dorm.client.live_reports import followed
from dorm.client.masters import row_of
from events import subjects
from events.codec import decode
from events.kinds import AppProgressed, NodeReported
from events.log.records import LogClosed, LogError, LogRefused, LogUnavailable
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from dorm.client.masters import Leader, MasterRow
    from dorm.core.progress import Newest
    from dorm.core.state import State
    from events.log.interface import Bus, ReadableLog
    from events.log.leadership import Held, Leadership
    from events.log.records import Record
    from events.log.stores import ReadableProgress
    from events.nats.streams import ServerState, StreamState


# --- heartbeats -------------------------------------------------------------------------------------------------------

_MOST = 4096
"""Nodes of which a report is kept."""
_LEAST_S = 0.5
"""Two reports that are closer together say little about a rate."""

Key = tuple[str, int, int]
"""App, generation and slot."""


class Used(msgspec.Struct, frozen=True):
    """What a container uses."""

    app: str
    generation: int
    slot: int
    cpu: int | None
    """Milli-cores; None if that is not known yet."""
    over_s: float | None
    """The length of time that this is a mean over."""
    memory: int
    """Bytes resident."""


class Report(msgspec.Struct, frozen=True):
    """A node's last heartbeat."""

    time: int
    """Time at which it was stored (UTC ns)."""
    measured: bool
    """False if the node's engine did not say in time what its containers use."""
    containers: list[Used]


class Reports:
    """Reads heartbeats of one cluster."""

    def __init__(self, bus: Bus, cluster: str) -> None:
        self._bus = bus
        self._cluster = cluster
        self._kept: OrderedDict[str, list[tuple[int, NodeReported]]] = OrderedDict()
        """The last two reports of each node, at most."""

    async def of(self, node: str, identity: str, started: Mapping[Key, int]) -> Report | None:
        """Return the last report of the machine that holds a node's name, None if there is none.  `started` is when each
        container started (UTC ns).  Raises what `Bus.last_report` raises."""
        record = await self._bus.last_report(subjects.report(self._cluster, node))
        event = decode(record) if record is not None else None
        if record is None or not isinstance(event, NodeReported) or event.identity != identity:
            return None
        kept = self._kept.setdefault(node, [])
        self._kept.move_to_end(node)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        if not kept or record.time - kept[-1][0] >= _LEAST_S * SECOND:
            kept.append((record.time, event))
            del kept[:-2]
        before = kept[-2] if len(kept) > 1 else None
        return _report(record.time, event, before, started)


def _report(
    time: int, event: NodeReported, before: tuple[int, NodeReported] | None, started: Mapping[Key, int]
) -> Report:
    earlier = (
        {(container.app, container.generation, container.slot): container.cpu_s for container in before[1].containers}
        if before is not None
        else {}
    )
    containers = []
    for container in event.containers:
        key = (container.app, container.generation, container.slot)
        since, spent_s = started.get(key, 0), container.cpu_s
        if before is not None and key in earlier and earlier[key] <= container.cpu_s:
            since, spent_s = before[0], container.cpu_s - earlier[key]
        over_s = (time - since) / SECOND if since else 0.0
        known = over_s >= _LEAST_S
        cpu = round(spent_s / over_s * 1000) if known else None
        containers.append(Used(*key, cpu, round(over_s, 3) if known else None, container.memory))
    return Report(time, "memory" in event.used, containers)


# --- the newest progress ----------------------------------------------------------------------------------------------

_PAUSE_S = 0.5
"""Seconds between two looks at what has come: answers are made again after each."""
_AGAIN_S = 5.0
_KEPT_NS = 180 * SECOND
"""Age of a last report in nanoseconds, after which it is forgotten here: the log has it."""


class NewestReports:
    """Follows the stream of progress.  If it can't be read, the log's marks are the newest."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self.reports: Newest = {}
        self.turn = 0
        """Counts the changes of `reports`."""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            with contextlib.suppress(LogClosed):
                async with contextlib.aclosing(followed(self._log)) as changes:
                    async for newest in changes:
                        last = max((report.time for report in newest.values()), default=0)
                        self.reports = {app: report for app, report in newest.items() if report.time > last - _KEPT_NS}
                        self.turn += 1
                        await asyncio.sleep(_PAUSE_S)
            await asyncio.sleep(_AGAIN_S)


# --- progress over time -----------------------------------------------------------------------------------------------

_CURVES = 64
"""Apps whose courses are kept."""


class Course:
    """The reports of one app, thinned as they become many: every second one goes when there are twice too many."""

    MOST = 4000

    def __init__(self, after: int) -> None:
        self.after = after
        """The last record that was looked at."""
        self.progress_read = 0
        """The last one of the stream of progress."""
        self.points: list[tuple[int, AppProgressed]] = []
        self._every = 1
        self._count = 0
        self.last: tuple[int, AppProgressed] | None = None

    def take_all(self, reports: Iterable[tuple[int, AppProgressed]]) -> None:
        """Take what came on both since the last look; a report that is on both counts once."""
        ids = {self.last[1].id} if self.last is not None else set()
        for time, event in sorted(reports, key=lambda report: report[0]):
            if event.id not in ids or not event.id:
                ids.add(event.id)
                self.take(time, event)

    def take(self, time: int, event: AppProgressed) -> None:
        self.last = (time, event)
        if self._count % self._every == 0:
            self.points.append(self.last)
            if len(self.points) > 2 * self.MOST:
                self.points, self._every = self.points[::2], 2 * self._every
        self._count += 1

    def thinned(self, width: int) -> list[tuple[int, AppProgressed]]:
        points = [*self.points, *([self.last] if self.last is not None and self.last != self.points[-1] else [])]
        if len(points) <= width:
            return points
        return [points[index * (len(points) - 1) // (width - 1)] for index in range(width)]


class Courses:
    """The courses of the apps that were requested last."""

    def __init__(self, log: ReadableLog, progress: ReadableProgress, cluster: str) -> None:
        self._log = log
        self._progress = progress
        self._cluster = cluster
        self._kept: OrderedDict[str, tuple[Course, asyncio.Lock]] = OrderedDict()

    async def of(self, app: str, submitted: int, upto: int, seconds: float) -> tuple[Course, bool]:
        """Return an app's course up to a record, and whether it got so far in this time."""
        if app not in self._kept:
            self._kept[app] = (Course(submitted), asyncio.Lock())
            if len(self._kept) > _CURVES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(app)
        course, lock = self._kept[app]
        async with lock:
            reports: list[tuple[int, AppProgressed]] = []
            complete = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._read(course, app, upto, reports)
                    with contextlib.suppress(LogUnavailable, LogRefused):  # The log has the marks.
                        await self._read_progress(course, app, reports)
                    complete = True
            course.take_all(reports)
            return course, complete

    async def _read(self, course: Course, app: str, upto: int, reports: list[tuple[int, AppProgressed]]) -> None:
        if course.after >= upto:
            return
        pattern = subjects.fact_pattern(self._cluster, AppProgressed.__name__)
        async with contextlib.aclosing(self._log.read(after=course.after, subjects=[pattern])) as batches:
            async for batch in batches:
                reports += _of(app, batch)
                course.after = batch[-1].seq
        course.after = max(course.after, upto)

    async def _read_progress(self, course: Course, app: str, reports: list[tuple[int, AppProgressed]]) -> None:
        async with contextlib.aclosing(self._progress.read(after=course.progress_read, app=app)) as batches:
            async for batch in batches:
                reports += _of(app, batch)
                course.progress_read = batch[-1].seq


def _of(app: str, batch: Iterable[Record]) -> list[tuple[int, AppProgressed]]:
    events = ((record.time, decode(record)) for record in batch)
    return [(time, event) for time, event in events if isinstance(event, AppProgressed) and event.app == app]


# --- the servers ------------------------------------------------------------------------------------------------------

_SEEN_S = 15.0
_INSPECT_S = 6.0


class ServersWatch:
    """The NATS servers of a cluster and their streams, as they were some seconds ago."""

    def __init__(
        self, inspect: Callable[[], Awaitable[tuple[list[ServerState], list[StreamState], Any]]] | None
    ) -> None:
        """`inspect` asks them; None if there are none, as for an archive."""
        self._inspect = inspect
        self._looking: asyncio.Task[tuple[list[ServerState], list[StreamState]]] | None = None
        self._until = 0.0

    async def seen(self) -> tuple[list[ServerState], list[StreamState]]:
        """Look at most every some seconds, once for all who ask."""
        now = asyncio.get_running_loop().time()
        if self._looking is None or (self._looking.done() and now >= self._until):
            self._until = now + _SEEN_S
            self._looking = asyncio.create_task(self._look(), name="servers")
        return await asyncio.shield(self._looking)

    async def _look(self) -> tuple[list[ServerState], list[StreamState]]:
        if self._inspect is None:
            return [], []
        try:
            async with asyncio.timeout(_INSPECT_S):
                servers, streams, _ = await self._inspect()
        except (LogError, TimeoutError):
            return [], []  # The follower reports outages.
        return servers, streams


# --- who leads --------------------------------------------------------------------------------------------------------

_LOOK_S = 1.0
_ASK_S = 5.0
_SPARE_S = 3.0
"""Seconds beyond the lease after which one that was not renewed is silent."""


class MastersWatch:
    """Follows the lease of a cluster's masters."""

    def __init__(
        self,
        leadership: Leadership,
        clock: Callable[[], int],
        ask: Callable[[], Awaitable[list[MasterRow] | None]] | None = None,
    ) -> None:
        """`ask` asks all masters for their status; None if there is nothing to ask, as for an archive."""
        self._ask = ask
        self._every: list[MasterRow] | None = None
        self._leadership = leadership
        self._clock = clock
        self._held: Held | None = None
        self._written_at = 0
        self._renewed_at = float("-inf")
        """Loop time of the last renewal."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_lease(), name="lease")
            if self._ask is not None:
                tasks.create_task(self._ask_all(self._ask), name="masters")

    async def _ask_all(self, ask: Callable[[], Awaitable[list[MasterRow] | None]]) -> None:
        while True:
            self._every = await ask()
            await asyncio.sleep(_ASK_S)

    async def _watch_lease(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                held = await self._leadership.look()
                if held != self._held:
                    self._held, self._renewed_at = held, loop.time()
                    self._written_at = self._clock()
            except LogError:
                pass  # The follower reports outages.
            await asyncio.sleep(_LOOK_S)

    def row(self) -> Callable[[State], Leader]:
        """Return a row that says who leads, as `dorm masters` shows it, from a state."""
        held, written_at, now = self._held, self._written_at, self._clock()
        patience = held.ttl_s + _SPARE_S if held is not None else 0.0
        seen = asyncio.get_running_loop().time() - self._renewed_at <= patience
        return lambda state: replace(row_of(state, held, written_at, now, seen=seen), masters=self._every)
