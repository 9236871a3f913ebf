"""Where on the log each app was submitted: read once, from submissions alone, and continued when it is asked for again."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from dorm.core.admission import app_id, name_of
from events import subjects
from events.codec import decode
from events.kinds import AppSubmitted

if TYPE_CHECKING:
    from events.log.interface import ReadableLog

_MOST = 100_000
"""Submissions that are kept, the latest."""
_SUGGESTED = 2000
"""Latest names among which similar ones are looked for."""


class Submitted:
    """The submissions of one log, by name and by the app's id."""

    def __init__(self, log: ReadableLog, cluster: str) -> None:
        self._log = log
        self._pattern = subjects.fact_pattern(cluster, AppSubmitted.__name__)
        self._lock = asyncio.Lock()
        self.forget()

    def forget(self) -> None:
        self._after = 0
        self._dropped = 0
        """The last submission that is not kept any more."""
        self._order: deque[tuple[int, str, str]] = deque()
        self._places: dict[str, list[int]] = {}
        """Sequences by name and by id, in order."""

    async def latest(self, name_or_id: str, upto: int) -> int | None:
        """Return the sequence of the latest submission up to a record, 0 if it may be any that is not kept, None for none.
        Raises the log's errors."""
        async with self._lock:
            await self._read(upto)
        places = self._places.get(name_or_id, [])
        index = bisect_right(places, upto)
        if index:
            return places[index - 1]
        return 0 if self._dropped else None

    def similar(self, name: str) -> list[str]:
        """Return names that the user may have meant."""
        names = {self._order[index][1] for index in range(max(0, len(self._order) - _SUGGESTED), len(self._order))}
        return difflib.get_close_matches(name, sorted(names), n=3)

    async def _read(self, upto: int) -> None:
        if self._after >= upto:
            return
        async with contextlib.aclosing(self._log.read(after=self._after, subjects=[self._pattern])) as batches:
            async for batch in batches:
                for record in batch:
                    event = decode(record)
                    if isinstance(event, AppSubmitted) and (name := name_of(event.spec)):
                        self._keep(record.seq, name, app_id(name, event.id))
                self._after = batch[-1].seq
        self._after = max(self._after, upto)

    def _keep(self, seq: int, name: str, id: str) -> None:
        self._order.append((seq, name, id))
        for one in (name, id):
            self._places.setdefault(one, []).append(seq)
        while len(self._order) > _MOST:
            self._dropped, *gone = self._order.popleft()
            for one in gone:
                self._places[one].pop(0)
                if not self._places[one]:
                    del self._places[one]
