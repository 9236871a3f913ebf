"""What this machine's masters and agents announce: their version, and the plug-in policies that work."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from events.kinds import PolicyPlugin

BUILD = f"dorm {version('dorm')}"


def plugins() -> list[PolicyPlugin]:
    """Return the plug-in policies of this machine that work, for a master to announce; the others are logged and ignored."""
    import structlog

    from dorm.plugins import loadable

    announced, problems = loadable()
    for problem in problems:
        structlog.get_logger(__name__).warning("a plug-in policy is left out", reason=problem)
    return announced
