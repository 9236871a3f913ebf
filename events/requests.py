"""Questions to agents, as JSON maps beside the log.  Container output is not an event; it is read where it is stored."""

from __future__ import annotations

import msgspec


class LogQuestion(msgspec.Struct, frozen=True):
    """Which container's output, and how much of it."""

    app: str
    generation: int
    slot: int
    follow: bool = False
    tail: int | None = None
    """Lines from the end; None for all."""
