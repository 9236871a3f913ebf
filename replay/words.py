"""Moments, spans and counts in words, for users."""

from __future__ import annotations

from events.instants import shown
from events.instants import span as span


def moment(time: int, digits: int = 0) -> str:
    """Format UTC nanoseconds as `2026-11-21 09:00:05 UTC`, with this many digits of the second's fraction."""
    return shown(time, digits)


def begins_again(lost_s: float) -> str:
    """Describe a resize of an app that has reported no checkpoint, and the work that it undoes (seconds)."""
    return f"restarts from the beginning, since it has reported no checkpoint: {span(lost_s)} of work lost"


def containers(number: int) -> str:
    return f"{number} container{'' if number == 1 else 's'}"


_FREE = {"open": "open whose fault it is, so it costs no retry", "node": "the node's fault, so it costs no retry"}


def failure_cost(fault: str, retry: str) -> str:
    """Return what a failure costs its app: the retry in words, or, without one, why there is none."""
    return retry or _FREE.get(fault, "not counted as a retry")
