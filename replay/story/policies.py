"""A policy's promises and failures, in words: for stories, timelines and lists of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.quantities import SECOND
from replay.words import containers, moment, span

if TYPE_CHECKING:
    from dorm.core.state import State
    from events import kinds as k


def planned(event: k.AppPlanned) -> str:
    """Describe a plan: when it starts and ends, the most containers of a slot, worth and cost."""
    if not event.slots:
        return "its plan was withdrawn"
    first, last = event.slots[0], event.slots[-1]
    most = max(sum(slot.containers.values()) for slot in event.slots)
    slots = sum(1 for slot in event.slots if slot.containers)
    changes = f"in {slots} parts" if slots > 1 else "all the time"
    start = next((slot for slot in event.slots if slot.containers), first)
    begins = f"from {moment(start.at)} " if start.at > first.at else ""
    lasts = f" ({span((last.at - start.at) / SECOND)})"
    worth = f"worth {event.worth:.3g} at a cost of {event.cost:.3g}"
    return f"planned {begins}until {moment(last.at)}{lasts}: up to {containers(most)}, {changes}; {worth}"


def failed(event: k.PolicyFailed) -> str:
    """Describe a policy that gave no usable answer, with its code."""
    reason = " ".join(event.reason.split())
    cut = reason if len(reason) <= 300 else reason[:299] + "…"
    return f"policy {event.policy} gave no usable answer, so every app keeps what it has: {cut} ({event.code})"


def is_first(state: State, event: k.PolicyFailed) -> bool:
    """Return whether this is the first of equal failures in a row, by the state after it: idle ticks repeat them."""
    known = state.policy_failure
    return getattr(known, "since", 0) == state.time and getattr(known, "code", "") == event.code
