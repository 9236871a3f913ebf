"""Sessions, as agents publish them: who entered which container, with which command, and how the session ended. The
log never contains the bytes of a session, which pass between a user and an agent (`events.sessions`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from events.fields import AppId, FreeText, NodeId, UserName, holds
from events.kinds.base import Amount, Event, ExitCode, Kind, PortOrNone
from events.limits import Name, Number, Slot

SessionIs = Literal["exec", "shell", "forward"]
"""A command, a shell on a terminal, or connections to a port."""


class SessionStarted(Event, frozen=True):
    """A user enters a container. The event is stored before anything runs for the user."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_session", on="app", folded=False)

    app: AppId
    generation: Number
    slot: Slot
    node: NodeId
    session: Annotated[Name, holds("own")]
    """Chosen by the user's client, unique among the user's sessions on the node."""
    user: UserName
    """The user, as authenticated by the server; on an open cluster, as claimed."""
    what: SessionIs
    command: FreeText = ""
    """The command as one line for a shell, cut, and without what looks like a secret; "" for forwarded connections."""
    port: PortOrNone = 0
    """The container's port to which connections are forwarded; 0 for a command."""


class SessionEnded(Event, frozen=True):
    """A session has ended, by the user or otherwise: none of its processes runs any more."""

    KIND: ClassVar[Kind] = Kind(writers=("node",), rule="of_session", on="app", folded=False)

    app: AppId
    generation: Number
    slot: Slot
    node: NodeId
    session: Annotated[Name, holds("own")]
    user: UserName
    what: SessionIs
    exit_code: ExitCode | None = None
    """Exit code of the command; None if it did not end by itself, and for forwarded connections."""
    reason: FreeText = ""
    """Why the session ended, if the command did not end by itself."""
    connections: Number = 0
    """Number of forwarded connections."""
    received: Amount = 0
    """Bytes that went into the container."""
    sent: Amount = 0
    """Bytes that came out of it."""


OfSessions = SessionStarted | SessionEnded
"""Everything about sessions."""
