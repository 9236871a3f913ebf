"""How an agent is: the process's own reports, besides the log."""

from __future__ import annotations

import msgspec

from events.requests import Delayed


class Vitals(msgspec.Struct, frozen=True):
    """One look at an agent."""

    node: str
    joined: bool
    """Whether it has announced its node, and holds the node's name."""
    seq: int
    """The last record that it has folded."""
    containers: dict[str, int]
    """By state, as the runtime listed them last."""
    pending: int
    """Facts that the log does not have yet."""
    silence_s: float
    """Seconds since the runtime last listed its containers."""
    lease_left_s: float = 0.0
    """How long, in seconds, its containers may run without a further stored heartbeat; 0 or less: they are killed."""
    delays: list[Delayed] = []
    """What it does again and again for containers."""
