"""Lines of an agent's own log that repeat during a fault: each is logged when the fault begins, and then at growing intervals
(`docs/logging.md`).

Pure: times are given, in seconds of any clock.
"""

from __future__ import annotations

from typing import Final

_FIRST_S: Final = 5.0
_LONGEST_S: Final = 300.0
_MOST: Final = 256
"""Different lines that are remembered; the one that was logged first is forgotten first."""


class Repeats:
    """The lines of one part of an agent."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[float, float, str]] = {}
        """By line: from when it may be logged again, the pause that this took, and what it was about."""

    def due(self, line: str, now: float, about: str = "") -> bool:
        """Return whether to log a line now: at once if it is `about` something else than before.  One that was not asked about
        for twice as long as its pause begins again."""
        again, pause, before = self._of.get(line, (now, 0.0, about))
        if now < again and about == before:
            return False
        if pause and (now > again + pause or about != before):
            pause = 0.0
        pause = min(_LONGEST_S, max(_FIRST_S, 2 * pause))
        self._of.pop(line, None)
        self._of[line] = now + pause, pause, about
        if len(self._of) > _MOST:
            del self._of[next(iter(self._of))]
        return True

    def over(self, line: str) -> bool:
        """Forget a line; return whether it was logged."""
        return self._of.pop(line, None) is not None
