"""What the story of an app says of people who entered its containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events import kinds as k

if TYPE_CHECKING:
    from dorm.core.state import App

_DID = {"exec": "ran a command in", "shell": "opened a shell in", "forward": "forwarded connections to"}


def told(event: k.OfSessions, app: App) -> tuple[str, str] | None:
    """Return the kind and the text of a chapter; None for another app."""
    if event.app != app.id:
        return None
    where = f"slot {event.slot} on {event.node}"
    if isinstance(event, k.SessionStarted):
        port = f", port {event.port}" if event.port else ""
        command = f": {event.command}" if event.command and event.what == "exec" else ""
        return "entered", f"{event.user} {_DID[event.what]} {where}{port}{command}"
    return "session_ended", f"{event.user} left {where}{_how(event)}"


def _how(event: k.SessionEnded) -> str:
    if event.exit_code is not None:
        return f": the {'shell' if event.what == 'shell' else 'command'} ended with exit code {event.exit_code}"
    reason = " ".join(event.reason.split())
    connections = (
        f" after {event.connections} connection{'' if event.connections == 1 else 's'}" if event.connections else ""
    )
    return connections + (f": {reason}" if reason else "")
