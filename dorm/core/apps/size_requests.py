"""An app's request for at most this many containers (`AppResizeRequested`).

A request is a hint of the app's own program, so it can only cost the app itself: it acts as an additional n_max,
within the owner's n_min and n_max. A lower value counts at once. A higher value, or a withdrawal, counts `RAISE_S`
after the last reduction, because others may be resized to make room again. An app that alternates therefore causes
resizes of others at most once in that time, and never for more than its fair share.

A request outlives resizes and restarts of the app.  It ends when the app withdraws it, or when its owner changes the bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.state import SizeRequest
from events.limits import clipped
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.state import App

RAISE_S = 300
"""As long as an app that was resized may take to show that it works (`dorm.core.apps.bounds.SETTLE_S`)."""
_LONGEST_REASON = 200
"""Characters: it is part of every decision that states the app's reason."""


def counts_at(asked: SizeRequest) -> int:
    """Return when its size counts (UTC ns)."""
    return asked.lowered_at + RAISE_S * SECOND if asked.before else asked.at


def requested(app: App, now: int) -> tuple[int, str] | None:
    """Return how many containers the app asked for at most, within its bounds, and its reason; None if it wants n_max."""
    asked = app.size_request
    if asked is None:
        return None
    early = now < counts_at(asked)
    size, reason = (asked.before, asked.before_reason) if early else (asked.containers, asked.reason)
    size = max(app.n_min, size) if size else 0
    return (size, reason) if 0 < size < app.n_max else None


def counts_from(app: App) -> Iterator[int]:
    """Yield when (UTC ns) a request begins to count although nothing happens; may be in the past."""
    if app.size_request is not None and app.size_request.before:
        yield counts_at(app.size_request)


def request(app: App, size: int, reason: str, now: int) -> bool:
    """Note a request.  Return False if it repeats the last one."""
    last, reason = app.size_request, clipped(reason, _LONGEST_REASON) if size else ""
    if (size, reason) == ((last.containers, last.reason) if last is not None else (0, "")):
        return False
    now_in_force = requested(app, now)
    if last is None or now_in_force is None:
        app.size_request = SizeRequest(size, reason, now, lowered_at=now) if size else None
        return True
    limit, why = now_in_force
    if 0 < size <= limit:
        lowered_at = now if size < limit else last.lowered_at
        app.size_request = SizeRequest(size, reason, now, lowered_at=lowered_at)
    elif now >= last.lowered_at + RAISE_S * SECOND:
        app.size_request = SizeRequest(size, reason, now, lowered_at=last.lowered_at) if size else None
    else:
        app.size_request = SizeRequest(size, reason, now, last.lowered_at, before=limit, before_reason=why)
    return True


def in_words(size: int, reason: str) -> str:
    """`it asked for 2: the gap shrinks no faster with more`."""
    line = " ".join(reason.split())
    return f"it asked for {size}" + (f": {line}" if line else "")
