"""Instants in text: one way to show them, and one way to read them, for all commands.

Everything is shown in UTC and says so, whatever zone the reader's machine has. A time in one output can therefore be compared
with one in another, and pasted into any command:

    2026-11-21 09:00:05.120 UTC     as tables and stories show it
    2026-11-21T09:00:05.120Z        as logs and documents have it
    1795251605120000000             nanoseconds since 1970, as JSON has it

A time with an offset is read as well; one without a zone is UTC.

    InstantError    this is no time, or it is not known which; the message says what to add
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from events.errors import DormError
from events.quantities import SECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS = re.compile(r"[0-9]{19}")
_CLOCK = re.compile(r"([0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)\s*(.*)")
_DATED = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2}(?::[0-9]{2}(?::[0-9]{2})?)?)(?:[.,]([0-9]{1,9}))?)?"
    r"\s*(.*)",
    re.IGNORECASE,
)
_OFFSET = re.compile(r"([+-]?)([0-9]{2}):?([0-9]{2})")
_WORD = re.compile(r"[A-Za-z][A-Za-z/_]*")


class InstantError(DormError, ValueError):
    """A text names no instant."""

    code = "moment.malformed"


class Instant(NamedTuple):
    """A time that somebody wrote."""

    time: int
    """UTC nanoseconds."""
    zoned: bool
    """Whether the text says in which zone it is; without that, it is taken for UTC."""
    last: int
    """The last nanosecond that is shown like this: a fraction that was cut off stands for more than its first one."""


def shown(time: int, digits: int = 0) -> str:
    """Format UTC nanoseconds as `2026-11-21 09:00:05 UTC`, with this many digits of the second's fraction."""
    return f"{day(time)} {clock(time, digits)} UTC"


def day(time: int) -> str:
    """Format UTC nanoseconds as `2026-11-21`."""
    return datetime.fromtimestamp(time // SECOND, UTC).strftime("%Y-%m-%d")


def clock(time: int, digits: int = 0) -> str:
    """Format UTC nanoseconds as `09:00:05`, for places where the day and the zone are next to it."""
    fraction = f".{time % SECOND:09d}"[: digits + 1] if digits else ""
    return datetime.fromtimestamp(time // SECOND, UTC).strftime("%H:%M:%S") + fraction


def read(text: str) -> Instant:
    """Read a time as any command shows it.  Raises InstantError."""
    text = text.strip()
    if _NS.fullmatch(text):
        return Instant(int(text), True, int(text))
    found = _DATED.fullmatch(text)
    if found is None:
        if (alone := _CLOCK.fullmatch(text)) is not None:
            raise InstantError(
                f"{text[:60]!r} has no date; add it, as in 2026-11-21T{alone[1]:0>5}Z", code="moment.no_date"
            )
        raise InstantError(f"{text[:60]!r} is not a time; write one such as 2026-11-21T09:00:00Z")
    date, of_day, fraction, zone = found.groups()
    offset = _offset(text, zone) if zone else timedelta()
    try:
        when = datetime.fromisoformat(f"{date}T{of_day or '00:00'}").replace(tzinfo=UTC) - offset
    except (ValueError, OverflowError) as error:
        raise InstantError(f"{text[:60]!r} is not a time: {error}") from None
    whole = (when - _EPOCH) // timedelta(seconds=1)
    time = whole * SECOND + int((fraction or "").ljust(9, "0"))
    return Instant(time, bool(zone), time + (10 ** (9 - len(fraction)) - 1 if fraction else 0))


def _offset(text: str, zone: str) -> timedelta:
    if zone.upper() in ("Z", "UTC", "GMT"):
        return timedelta()
    # In a URL, a plus sign stands for a space.
    if (found := _OFFSET.fullmatch(zone)) is not None and int(found[2]) < 24 and int(found[3]) < 60:
        size = timedelta(hours=int(found[2]), minutes=int(found[3]))
        return -size if found[1] == "-" else size
    if _WORD.fullmatch(zone):
        raise InstantError(
            f"{text[:60]!r}: which zone {zone[:20]} is can't be told; write its offset, as in +01:00, or Z for UTC",
            code="moment.zone",
        )
    raise InstantError(f"{text[:60]!r} is not a time; write one such as 2026-11-21T09:00:00Z")
