"""Instants and durations in text: one way to show instants, and one way to read them, for all commands.

Everything is shown in UTC and says so, whatever zone the reader's machine has. A time in one output can therefore be compared
with one in another, and pasted into any command:

    2026-11-21 09:00:05.120 UTC     as tables and stories show it
    2026-11-21T09:00:05.120Z        as logs and documents have it
    1795251605120000000             nanoseconds since 1970, as JSON has it

A time with an offset is read as well; one without a zone is UTC.

Durations are shown as their readers compare them: an age in a column (`ago`), a span in a sentence (`span`), the length of a
phase in a timeline (`length_of_phase`), seconds in a table of figures (`table_seconds`), a span next to another one that
differs little (`comparable_span`).

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
    match = _DATED.fullmatch(text)
    if match is None:
        if (alone := _CLOCK.fullmatch(text)) is not None:
            raise InstantError(
                f"{text[:60]!r} has no date; add it, as in 2026-11-21T{alone[1]:0>5}Z", code="moment.no_date"
            )
        raise InstantError(f"{text[:60]!r} is not a time; write one such as 2026-11-21T09:00:00Z")
    date, of_day, fraction, zone = match.groups()
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
    if (match := _OFFSET.fullmatch(zone)) is not None and int(match[2]) < 24 and int(match[3]) < 60:
        size = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return -size if match[1] == "-" else size
    if _WORD.fullmatch(zone):
        raise InstantError(
            f"{text[:60]!r}: which zone {zone[:20]} is can't be told; write its offset, as in +01:00, or Z for UTC",
            code="moment.zone",
        )
    raise InstantError(f"{text[:60]!r} is not a time; write one such as 2026-11-21T09:00:00Z")


# --- durations in words ------------------------------------------------------------------------------------------------


def ago(seconds: float) -> str:
    """Return `42s`, `5m`, `3h`, `2d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def span(seconds: float) -> str:
    """Format seconds as `4.2 s`, `75 s`, `5 min`, `3.1 h` or `2.5 days`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def length_of_phase(nanoseconds: int) -> str:
    """Format nanoseconds as `80 ms`, `4.2 s`, `5.0 min` or `3.1 h`."""
    seconds = nanoseconds / SECOND
    for unit, size, least in (("h", 3600, 5400), ("min", 60, 120), ("s", 1, 1)):
        if seconds >= least:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else f"{nanoseconds / 1000:.0f} µs"


def table_seconds(value: float) -> str:
    """Format seconds for a table: whole seconds, in groups of three."""
    return f"{value:,.0f} s" if abs(value) >= 100 else f"{value:.3g} s"


def comparable_span(seconds: float) -> str:
    """Return `13.2 min`, `9.97 s`: to three digits, so that runs with small differences can be distinguished."""
    for most, unit_s, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if seconds < most:
            return f"{_digits(seconds / unit_s)} {unit}"
    return f"{_digits(seconds / 86_400)} days"


def _digits(value: float) -> str:
    """Format to three digits, or more before the point."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
