"""Positions of events in the log: `118`, or `118.2` for a fact of the master's round 118.

Every tool that shows, exports or follows events takes them from records here, so a position means the same everywhere: it is
the id of a CloudEvent, the value of `--after`, and where a tail resumes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from events.codec import decode
from events.errors import DormError
from events.kinds import Event, Round

if TYPE_CHECKING:
    from collections.abc import Iterator

    from events.log.records import Record

_TEXT = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?")


class PositionError(DormError, ValueError):
    """A text is no position."""

    code = "position.malformed"


class Position(msgspec.Struct, frozen=True):
    """The place of one event; its text is `seq` or `seq.index`."""

    seq: int
    """The record's sequence; 0 is before the first."""
    index: int | None = None
    """Index of a fact in a round, from 0; None for an event with its own record, or for a whole record."""

    def __str__(self) -> str:
        return str(self.seq) if self.index is None else f"{self.seq}.{self.index}"

    def covers(self, other: Position) -> bool:
        """Return whether a reader that has reached this position has read `other`."""
        if other.seq != self.seq:
            return other.seq < self.seq
        return self.index is None or (other.index or 0) <= self.index


def parse(text: str) -> Position:
    """Parse a position.  Raises PositionError."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise PositionError(
            f"{text[:60]!r} is no position; write a sequence (118), or with the index in a round (118.2)"
        )
    return Position(int(found[1]), None if found[2] is None else int(found[2]))


class Logged(msgspec.Struct, frozen=True):
    """An event with its place in the log."""

    position: Position
    time: int
    """Log time, UTC nanoseconds."""
    subject: str
    """The record's subject: which cluster, and who published it (`events.subjects`)."""
    event: Event
    round: Round | None = None
    """The round that holds the event, None for one with its own record."""


def logged(record: Record) -> Iterator[Logged]:
    """Yield each event of a record: itself, or every fact of a round."""
    event = decode(record)
    if not isinstance(event, Round):
        yield Logged(Position(record.seq), record.time, record.subject, event)
        return
    for index, fact in enumerate(event.events):
        yield Logged(Position(record.seq, index), record.time, record.subject, fact, event)
