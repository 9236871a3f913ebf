"""Moments, spans and counts in words, for users."""

from __future__ import annotations

from events.instants import shown


def moment(time: int, digits: int = 0) -> str:
    """Format UTC nanoseconds as `2026-11-21 09:00:05 UTC`, with this many digits of the second's fraction."""
    return shown(time, digits)


def span(seconds: float) -> str:
    """Format seconds as `4.2 s`, `75 s`, `5 min`, `3.1 h` or `2.5 days`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def begins_again(lost_s: float) -> str:
    """Describe a resize of an app that has reported no checkpoint, and the work that it undoes (seconds)."""
    return f"restarts from the beginning, since it has reported no checkpoint: {span(lost_s)} of work lost"


def containers(number: int) -> str:
    return f"{number} container{'' if number == 1 else 's'}"


_FREE = {"open": "open whose fault it is, so it costs no retry", "node": "the node's fault, so it costs no retry"}


def failure_cost(fault: str, retry: str) -> str:
    """Return what a failure costs its app: the retry in words, or, without one, why there is none."""
    return retry or _FREE.get(fault, "not counted as a retry")
