"""The courses of apps' work, as they reported it: read once, thinned, and continued when they are asked for again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from events import subjects
from events.codec import decode
from events.kinds import AppProgressed

if TYPE_CHECKING:
    from events.log.interface import ReadableLog

_CURVES = 64
"""Apps whose courses are kept."""


class Course:
    """The reports of one app, thinned as they become many: every second one goes when there are twice too many."""

    MOST = 4000

    def __init__(self, after: int) -> None:
        self.after = after
        """The last record that was looked at."""
        self.points: list[tuple[int, AppProgressed]] = []
        self._every = 1
        self._count = 0
        self.last: tuple[int, AppProgressed] | None = None

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
    """The courses of the apps that were asked for last."""

    def __init__(self, log: ReadableLog, cluster: str) -> None:
        self._log = log
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
        pattern = subjects.fact_pattern(self._cluster, AppProgressed.__name__)
        async with lock:
            if course.after >= upto:
                return course, True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    async with contextlib.aclosing(self._log.read(after=course.after, subjects=[pattern])) as batches:
                        async for batch in batches:
                            for record in batch:
                                event = decode(record)
                                if isinstance(event, AppProgressed) and event.app == app:
                                    course.take(record.time, event)
                            course.after = batch[-1].seq
                    course.after = max(course.after, upto)
                    return course, True
            return course, False
