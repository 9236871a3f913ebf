"""The courses of apps' work, as they reported it: read once, thinned, and continued when they are asked for again.

The log has marks, and the stream of progress beside it the reports between them; a course is both, in the order of their
times.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from events import subjects
from events.codec import decode
from events.kinds import AppProgressed
from events.log.records import LogRefused, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from events.log.interface import ReadableLog
    from events.log.records import Record
    from events.log.stores import ReadableProgress

_CURVES = 64
"""Apps whose courses are kept."""


class Course:
    """The reports of one app, thinned as they become many: every second one goes when there are twice too many."""

    MOST = 4000

    def __init__(self, after: int) -> None:
        self.after = after
        """The last record that was looked at."""
        self.beside = 0
        """The last one of the stream of progress."""
        self.points: list[tuple[int, AppProgressed]] = []
        self._every = 1
        self._count = 0
        self.last: tuple[int, AppProgressed] | None = None

    def take_all(self, found: Iterable[tuple[int, AppProgressed]]) -> None:
        """Take what came on both since the last look; a report that is on both counts once."""
        ids = {self.last[1].id} if self.last is not None else set()
        for time, event in sorted(found, key=lambda one: one[0]):
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
            found: list[tuple[int, AppProgressed]] = []
            complete = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._read(course, app, upto, found)
                    with contextlib.suppress(LogUnavailable, LogRefused):  # The log has the marks.
                        await self._read_beside(course, app, found)
                    complete = True
            course.take_all(found)
            return course, complete

    async def _read(self, course: Course, app: str, upto: int, found: list[tuple[int, AppProgressed]]) -> None:
        if course.after >= upto:
            return
        pattern = subjects.fact_pattern(self._cluster, AppProgressed.__name__)
        async with contextlib.aclosing(self._log.read(after=course.after, subjects=[pattern])) as batches:
            async for batch in batches:
                found += _of(app, batch)
                course.after = batch[-1].seq
        course.after = max(course.after, upto)

    async def _read_beside(self, course: Course, app: str, found: list[tuple[int, AppProgressed]]) -> None:
        async with contextlib.aclosing(self._progress.read(after=course.beside, app=app)) as batches:
            async for batch in batches:
                found += _of(app, batch)
                course.beside = batch[-1].seq


def _of(app: str, batch: Iterable[Record]) -> list[tuple[int, AppProgressed]]:
    events = ((record.time, decode(record)) for record in batch)
    return [(time, event) for time, event in events if isinstance(event, AppProgressed) and event.app == app]
