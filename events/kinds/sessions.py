"""What agents publish about sessions: who entered which container, with which command, and how that ended.

The bytes of a session are on no log: they pass between a person and an agent (`events.sessions`)."""

from __future__ import annotations

from typing import Literal

from events.kinds.base import Amount, Event, ExitCode, PortOrNone
from events.limits import Name, Number, Slot

SessionIs = Literal["exec", "shell", "forward"]
"""A command, a shell on a terminal, or connections to a port."""


class SessionStarted(Event, frozen=True):
    """A person enters a container.  It is stored before anything runs there for that person."""

    app: Name
    generation: Number
    slot: Slot
    node: Name
    session: Name
    """Chosen by the person's client, unique among the sessions of that person on the node."""
    user: Name
    """Who it is, as the server that guards the subjects has it; on an open cluster, who it claims to be."""
    what: SessionIs
    command: str = ""
    """The command as one line for a shell, cut, and without what looks like a secret; "" for forwarded connections."""
    port: PortOrNone = 0
    """The container's port to which connections are forwarded; 0 for a command."""


class SessionEnded(Event, frozen=True):
    """A person has left a container, or was made to: nothing of the session runs there any more."""

    app: Name
    generation: Number
    slot: Slot
    node: Name
    session: Name
    user: Name
    what: SessionIs
    exit_code: ExitCode | None = None
    """Of the command; None where it did not end by itself, and for forwarded connections."""
    reason: str = ""
    """Why it ended, where the command did not end by itself."""
    connections: Number = 0
    """How many connections were forwarded."""
    received: Amount = 0
    """Bytes that went into the container."""
    sent: Amount = 0
    """Bytes that came out of it."""


OfSessions = SessionStarted | SessionEnded
"""Everything about sessions."""
