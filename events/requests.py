"""Questions beside the log, as JSON maps: to agents for containers' output, and to a master's side for a tenant's view."""

from __future__ import annotations

from typing import Literal

import msgspec

from events.limits import Moment, Name, Number, Sequence, Slot


class LogQuestion(msgspec.Struct, frozen=True):
    """Which container's output, and how much of it."""

    app: Name
    generation: Number
    slot: Slot
    follow: bool = False
    tail: Number | None = None
    """Lines from the end; None for all."""


class ViewQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user asks of the own tenant's view of the log; `events.log.views` reads the answer."""

    what: Literal["read", "end", "time", "states", "state", "report"]
    """Records; the last sequence; the sequence at a time; the states to start from; one of these; a node's last heartbeat."""
    after: Sequence = 0
    """The last record that the reader has."""
    at: Moment = 0
    """Its log time, by which another log in the same place is noticed; the time that is asked about."""
    until: Sequence | None = None
    """None for the end of the log as it is now."""
    follow: bool = False
    """Go on with records to come, without end."""
    node: Name = ""
