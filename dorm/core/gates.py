"""What keeps an app from running, in the state: a hold.  `dorm.core.apps.gates` has the rules."""

from __future__ import annotations

import msgspec


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Somebody holds the app (`AppHoldRequested`, or `hold: true` in its spec)."""

    by: str
    at: int
    """Log time (UTC ns)."""
    reason: str
    operator: bool = False
    """An operator holds somebody else's app: only operators release it."""


class Gates(msgspec.Struct):
    """The gates of an app.  While one is closed, the app has and gets no containers, and is no demand for any policy."""

    hold: Hold | None = None
    """None while nobody holds it."""
    closed_at: int = 0
    """Since when a gate is closed (log time, UTC ns); 0 while all are open."""
    closed_ns: int = 0
    """How long gates were closed before that, which is no age that an app could be treated unfairly in."""
