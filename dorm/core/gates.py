"""What keeps an app from running, in the state: a hold, a time, other apps that have to end first; and how long it has run.

`dorm.core.apps.gating.gates` and `limits` have the rules.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from events.spec.gates import When


class Hold(msgspec.Struct, frozen=True, gc=False):
    """A user holds the app (`AppHoldRequested`, or `hold: true` in its spec)."""

    by: str
    at: int
    """Log time (UTC ns)."""
    reason: str
    operator: bool = False
    """An operator holds another user's app: only operators release it."""


class Awaited(msgspec.Struct, frozen=True, gc=False):
    """Another app that this one waits for (`after` of its spec)."""

    app: str
    """Its id; "" once it has ended, because the state forgets it some time later."""
    name: str
    when: When
    """How it has to end."""
    outcome: Literal["", "completed", "failed", "cancelled"] = ""
    """How it has ended, "" before."""

    @property
    def holds(self) -> bool:
        """Whether it has ended as it has to."""
        return self.outcome != "" and self.when in ("ended", self.outcome)

    @property
    def broken(self) -> bool:
        """Whether it has ended otherwise, so that the wait would never end."""
        return self.outcome != "" and not self.holds


class Gates(msgspec.Struct):
    """The gates of an app.  While one is closed, the app has and gets no containers, and is not a demand for any policy."""

    hold: Hold | None = None
    """None while it is not held."""
    after: list[Awaited] = []
    """Apps that it waits for, or has waited for."""
    starts_at: int = 0
    """Before then it gets no containers (log time, UTC ns); 0 for any time."""
    closed_at: int = 0
    """Since when a gate is closed that a record opens (log time, UTC ns), not before `starts_at`; 0 while there is none."""
    closed_ns: int = 0
    """How long gates were closed before that, until `starts_at` included: this time does not count towards an app's
    age."""


class RunTime(msgspec.Struct, gc=False):
    """How long an app with a limit has run."""

    ran_ns: int = 0
    """Of generations that have ended."""
    since: int = 0
    """Since when the present one runs (log time, UTC ns); 0 while none does."""
