"""Positions of events in the log: `118`, or `118.2` for a fact of the master's round 118.

Progress between two marks is on a stream beside the log (`events.log.stores`).  Its events have the position `118~57`:
record 57 of that stream, read after record 118 of the log.  No event of the log has such a position, and a reader of both
resumes from it exactly.

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

_TEXT = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?(?:~([0-9]{1,18}))?")


class PositionError(DormError, ValueError):
    """A text is not a position."""

    code = "position.malformed"


class Position(msgspec.Struct, frozen=True):
    """The place of one event; its text is `seq` or `seq.index`, and with `~` what was read of the stream of progress."""

    seq: int
    """The record's sequence; 0 is before the first."""
    index: int | None = None
    """Index of a fact in a round, from 0; None for an event with its own record, or for a whole record."""
    beside: int | None = None
    """Sequence in the stream of progress: of an event there, or of the last one that a reader of both has read."""

    def __str__(self) -> str:
        index = "" if self.index is None else f".{self.index}"
        return f"{self.seq}{index}~{self.beside}" if self.beside else f"{self.seq}{index}"

    def covers(self, other: Position) -> bool:
        """Return whether a reader that has reached this position has read `other`.  Of a position without a place in the
        stream of progress, nothing there is known to have been read."""
        if other.beside is not None:
            return self.beside is not None and other.beside <= self.beside
        if other.seq != self.seq:
            return other.seq < self.seq
        return self.index is None or (other.index or 0) <= self.index


def parse(text: str) -> Position:
    """Parse a position.  Raises PositionError."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise PositionError(
            f"{text[:60]!r} is not a position; write a sequence (118), or with the index in a round (118.2), or what an "
            "interrupted reading reported (118.2~57)"
        )
    index, beside = (None if part is None else int(part) for part in match.groups()[1:])
    return Position(int(match[1]), index, beside)


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


def logged_progress(record: Record, after: int) -> Logged:
    """Return the event of a record of the stream of progress, read after that sequence of the log."""
    return Logged(Position(after, None, record.seq), record.time, record.subject, decode(record))
