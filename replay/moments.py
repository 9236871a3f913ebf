"""Names of a state of the past: `120` (a sequence), `120.2` (a position, which stands for its whole record),
`2026-11-21T09:00` (a time), `-10m` (before the log's end)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.log.interface import time_of

if TYPE_CHECKING:
    from events.log.interface import ReadableLog

import re

import msgspec

from events.instants import InstantError, day, read
from events.quantities import SECOND, QuantityError, duration, short
from replay import ReplayError

_CLOCK = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?( ?(Z|UTC))?", re.IGNORECASE)
_POSITION = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?(~[0-9]{1,15})?", re.ASCII)
_DAY = 24 * 3600 * SECOND


class MomentError(ReplayError):
    """A moment that cannot be parsed, or that is outside the log."""

    code = "moment.malformed"


class AtSequence(msgspec.Struct, frozen=True):
    """After the record with this sequence; 0 is before the first."""

    seq: int


class AtTime(msgspec.Struct, frozen=True):
    """After the last record whose log time is not later than this (UTC nanoseconds)."""

    time: int


class BeforeEnd(msgspec.Struct, frozen=True):
    """Like `AtTime`, this many nanoseconds before the log time of the last record."""

    span: int


Moment = AtSequence | AtTime | BeforeEnd


def not_in_log(seq: int, start: int, end: int) -> MomentError:
    """Return the error of a sequence outside a log that has records after `start` up to `end`."""
    text = f"the log has records {start + 1} to {end}, and no record {seq}"
    return MomentError(text, code="moment.after_end" if seq > end else "moment.before_start")


async def time_at(log: ReadableLog, moment: AtTime | BeforeEnd, end: int | None = None) -> int:
    """Return the log time of a moment (UTC ns); `end` is the log's last sequence, where the caller has it."""
    if isinstance(moment, AtTime):
        return moment.time
    return await time_of(log, await log.end() if end is None else end) - moment.span


def parse_clock(text: str, now: int) -> AtSequence | AtTime:
    """Parse a moment of data that is not on the log and has clock times, such as output: like `parse`, but `-10m` counts back
    from `now` (UTC ns), and `14:05` is its latest occurrence (UTC).  Raises MomentError."""
    if _CLOCK.fullmatch(text.strip()):
        parsed = parse(f"{day(now)}T{text.strip()}")
        assert isinstance(parsed, AtTime)
        return parsed if parsed.time <= now else AtTime(parsed.time - _DAY)
    moment = parse(text)
    return AtTime(now - moment.span) if isinstance(moment, BeforeEnd) else moment


def parse(text: str) -> Moment:
    """Parse a moment.  Digits alone are a sequence, and a position as it is printed (`844.0`, `844~57`) is that of its
    record; a time without a zone is UTC.  Raises MomentError."""
    text = text.strip()
    if _POSITION.fullmatch(text):
        return AtSequence(int(re.split("[.~]", text)[0]))
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return AtSequence(int(text))
    if text.startswith("-"):
        try:
            return BeforeEnd(int(duration(text[1:]) * SECOND))
        except QuantityError as error:
            raise MomentError(f"{short(text)}: {error}", code=f"moment.{error.problem}") from None
    try:
        return AtTime(read(text).time)
    except InstantError as error:
        if error.code != InstantError.code:
            raise MomentError(str(error), code=error.code) from None
        raise MomentError(
            f"{text[:60]!r} is not a moment; write a sequence (120), a time (2026-11-21T09:00:00Z) or how long before "
            "the log's end (-10m)"
        ) from None
