"""Questions to agents, as JSON maps beside the log.  Container output is not an event; it is read where it is stored."""

from __future__ import annotations

import msgspec

from events.limits import Name, Number, Slot


class LogQuestion(msgspec.Struct, frozen=True):
    """Which container's output, and how much of it."""

    app: Name
    generation: Number
    slot: Slot
    follow: bool = False
    tail: Number | None = None
    """Lines from the end; None for all."""
