"""Selects a part of a log: from one moment to another, and the events that concern some apps or users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.query.concerns import Concerns
from events.instants import shown
from events.log.interface import time_of
from events.positions import logged
from replay.moments import AtSequence, AtTime, Moment, MomentError, time_at

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from events.positions import Logged


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a log to select; by default all of it."""

    since: Moment | None = None
    """Moment from which records count; `-10m` counts from the log's end."""
    until: Moment | None = None
    """Up to this record, or the last one before it."""
    apps: tuple[str, ...] = ()
    """Events that concern any of these, by name or id (`dorm.core.query.concerns`)."""
    users: tuple[str, ...] = ()
    """Events that any of these requested, and events that concern their apps."""

    @property
    def some(self) -> bool:
        """Whether records in between are left out."""
        return bool(self.apps or self.users)


class Range(msgspec.Struct, frozen=True):
    """Records `after` < sequence ≤ `end`."""

    after: int
    end: int


async def range_of(log: ReadableLog, selection: Selection) -> Range:
    """Return the range of a selection.  Raises MomentError if it is empty, and what `log.at_time` raises."""
    start, end = await log.start(), await log.end()
    after = start if selection.since is None else max(start, await _before(log, selection.since, end, itself=False))
    upto = end if selection.until is None else await _before(log, selection.until, end, itself=True)
    if after >= end and isinstance(selection.since, AtTime):
        text = f"the log ends at {end}, {_clock(await time_of(log, end))}, before that time"
        raise MomentError(text, code="moment.after_end")
    if after >= upto and (selection.since is not None or selection.until is not None):
        text = f"no record lies in that time; the log has records {start + 1} to {end}"
        raise MomentError(text, code="moment.no_records")
    return Range(after, max(after, upto))


async def _before(log: ReadableLog, moment: Moment, end: int, *, itself: bool) -> int:
    """Return the last sequence before a moment; with `itself`, a record at the moment counts as before it."""
    if isinstance(moment, AtSequence):
        if moment.seq > end:
            raise MomentError(f"the log ends at {end}, before {moment.seq}", code="moment.after_end")
        return moment.seq if itself else max(0, moment.seq - 1)
    time = await time_at(log, moment, end)
    return await log.at_time(time if itself else time - 1)


def _clock(time: int) -> str:
    return shown(time)


class Sieve:
    """Filters a range.  It must see every record, in order, since it learns from them which app belongs to which user."""

    def __init__(self, selection: Selection, state: State | None) -> None:
        """`state` is that before the first record; None if it is unknown, or at the log's start."""
        self._concerns = Concerns(apps=selection.apps, users=selection.users) if selection.some else None
        if self._concerns is not None and state is not None:
            self._concerns.know(state)

    def wants(self, entry: Logged) -> bool:
        return self._concerns is None or self._concerns.wants(entry)

    def any_of(self, record: Record) -> bool:
        """Return whether anything in a record is selected: a round is one record, and stays whole."""
        if self._concerns is None:
            return True
        wanted = False
        for entry in logged(record):
            # Check every fact of a round, since a later answer may depend on it.
            wanted |= self.wants(entry)
        return wanted
