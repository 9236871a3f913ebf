"""Bounded cache of records and states, so stepping back and forth reads and folds nothing twice.

Records are kept in pages of `PAGE`, states (`Keyframes`) at the sequences between two pages.  So any state is one keyframe
and less than a page of folding away, as long as its keyframe is kept.  The least recently used entries are evicted first.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from contextlib import aclosing
from typing import TYPE_CHECKING

from dorm.core.snapshot import copy
from events.log.records import LogDamaged

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from dorm.core.snapshot import Copy
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from events.log.records import Record

PAGE = 1000
"""Records per page, which bounds the folding of a step back.  Page i holds the sequences after i · PAGE."""
_ROOM = 64 << 20
_OF_RECORD = 200
"""Approximate bytes of a record beside its body."""


class Pages:
    """A log's records in order, each read once while there is room for it."""

    def __init__(self, log: ReadableLog, start: int, room: int = _ROOM) -> None:
        """`start` is the log's start, `room` is in bytes."""
        self._log, self._start, self._room = log, start, room
        self._kept: OrderedDict[int, list[Record]] = OrderedDict()
        self._bytes = 0

    def has(self, index: int, upto: int) -> bool:
        """Return whether a page is cached, up to the log's end (`upto`)."""
        page = self._kept.get(index)
        return page is not None and page[-1].seq >= min(upto, (index + 1) * PAGE)

    async def read(self, after: int, upto: int) -> AsyncGenerator[list[Record], None]:
        """Yield the records between two sequences that the log has, at most a page at once.  Raises as `log.read`."""
        after = max(after, self._start)
        while after < upto:
            page = self._kept.get(after // PAGE)
            if page is not None and page[-1].seq > after:
                self._kept.move_to_end(after // PAGE)
                yield (found := _between(page, after, upto))
                after = found[-1].seq
                continue
            async with aclosing(self._fetch(after // PAGE, upto)) as pages:
                async for page in pages:
                    if after < upto and page[-1].seq > after:
                        yield (found := _between(page, after, upto))
                        after = found[-1].seq
                    if after >= upto or self.has(after // PAGE, upto):
                        break
                else:
                    raise LogDamaged(f"the log ends before record {upto}, which it had before")

    async def _fetch(self, index: int, upto: int) -> AsyncGenerator[list[Record], None]:
        """Yield pages as they are filled, from this one on; the batch that holds `upto` is kept whole, since it was read."""
        begun = self._kept.get(index)
        after = begun[-1].seq if begun else max(self._start, index * PAGE)
        async with aclosing(self._log.read(after=after)) as batches:
            async for batch in batches:
                filled, done = [], 0
                while done < len(batch):
                    room = (batch[done].seq - 1) // PAGE * PAGE + PAGE - batch[done].seq + 1
                    part = batch[done : done + room]
                    index, done = (part[0].seq - 1) // PAGE, done + len(part)
                    page = self._kept.get(index, [])
                    page = [*page, *part[page[-1].seq + 1 - part[0].seq :]] if page else part
                    self._keep(index, page)
                    filled.append(page)
                for page in filled:
                    yield page
                if batch[-1].seq >= upto:
                    return

    def _keep(self, index: int, page: list[Record]) -> None:
        self._bytes += _size(page) - _size(self._kept.pop(index, []))
        self._kept[index] = page
        while self._bytes > self._room and len(self._kept) > 1:
            self._bytes -= _size(self._kept.popitem(last=False)[1])


def _between(page: list[Record], after: int, upto: int) -> list[Record]:
    first = page[0].seq
    return page[max(0, after + 1 - first) : upto + 1 - first]


def _size(page: list[Record]) -> int:
    return sum(len(record.body) + _OF_RECORD for record in page)


class Keyframes:
    """States at the sequences between two pages."""

    def __init__(self, room: int = _ROOM) -> None:
        """`room` in bytes."""
        self._room = room
        self._kept: OrderedDict[int, Copy] = OrderedDict()
        self._seqs: list[int] = []
        self._bytes = 0

    def pass_by(self, state: State) -> None:
        """Note each folded state, and keep a copy if it lies between two pages."""
        if state.seq % PAGE == 0 and state.seq and state.seq not in self._kept:
            kept = copy(state)
            self._kept[kept.seq] = kept
            insort(self._seqs, kept.seq)
            self._bytes += len(kept.encoded)
            while self._bytes > self._room and len(self._kept) > 1:
                seq, gone = self._kept.popitem(last=False)
                self._seqs.remove(seq)
                self._bytes -= len(gone.encoded)

    def before(self, seq: int) -> Copy | None:
        """Return the latest one at or before a sequence."""
        place = bisect_right(self._seqs, seq)
        if not place:
            return None
        found = self._seqs[place - 1]
        self._kept.move_to_end(found)
        return self._kept[found]
