"""What operators ask of a cluster as a whole and of its nodes, beside drains and settings; and what owners ask of an app."""

from __future__ import annotations

from events.kinds.base import Event
from events.limits import Name


class NodeForgetRequested(Event, frozen=True):
    """Forget a node that has left or whose lease has ended: it is no longer listed, drained or waited for.  Its log stays, and
    if its agent comes back, it joins as a new node."""

    node: Name
    reason: str = ""


class SchedulingPaused(Event, frozen=True):
    """Decide nothing new until `SchedulingResumed`.  Submissions are accepted, what was decided is carried out, and apps that
    end give up their room."""

    reason: str = ""


class SchedulingResumed(Event, frozen=True):
    """Decide again."""

    reason: str = ""


class AppRetryRequested(Event, frozen=True):
    """Retry an app now that pauses after a failure.  Its failures still count."""

    app: Name
