"""Who was heard when, as far as silence means anything.

Silence is measured by the caller's monotonic clock, so no step of anybody's wall clock loses a node.  And it counts only
where something would have been heard:

    pulse      the log answered; where it had not for longer than `DEAF_NS` (it was down, this process was stopped, the network
               was cut), this master was deaf, and everybody counts as heard now
    stored     before a silence has consequences, the last stored heartbeat is asked for: one that was not heard here means
               that this node's words do not reach us, and that it counts as heard now
    restart    whoever has just begun to lead has heard nobody

To count as heard is not to be heard: a lost node is back only when it really was (`alive`).

All times are nanoseconds of the caller's monotonic clock unless they are said to be UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dorm.core.leader import Moment

DEAF_NS = 4_000_000_000
"""Without an answer of the log for so long, heartbeats may have been missed as well."""


LOOK_NS = 1_000_000_000
"""Between two looks at who is silent."""


class FailureDetector:
    """What one master has heard; no I/O and no clock.  The leader looks at it once a second."""

    asks = True
    """Before a silence has consequences, the last stored heartbeat is read."""

    def __init__(self, doubts: Callable[[], bool] = lambda: False) -> None:
        """`doubts` says whether something else tells that this master is cut off, such as a lease that is not renewed."""
        self._doubts = doubts
        self.alive: set[str] = set()
        """Nodes that were heard since the last restart."""
        self._at: dict[str, int] = {}
        """When each node was heard, or last counted as heard."""
        self._words: dict[str, bytes] = {}
        """The last heartbeat of each that was heard, or was found stored."""
        self._pulse_at = 0
        self._looked_at = 0

    def look_at(self) -> int:
        """When to look at who is silent next."""
        return self._looked_at + LOOK_NS if self._looked_at else 0

    def looked(self, at: int) -> None:
        """Who is silent was looked at."""
        self._looked_at = at

    def restart(self, nodes: Iterable[str], now: int) -> None:
        """From now on these nodes are listened for, and count as heard now."""
        self._at = dict.fromkeys(sorted(nodes), now)
        self._words = {node: words for node, words in self._words.items() if node in self._at}
        self._pulse_at = now
        self.alive.clear()

    def hear(self, node: str, now: int, words: bytes | None = None) -> None:
        """A sign of life, `words` where it is a heartbeat."""
        self._at[node] = now
        self.alive.add(node)
        if words is not None:
            self._words[node] = words

    def pulse(self, now: int) -> None:
        """The log has answered."""
        if self.deaf(now):
            self.restart(self._at, now)
        self._pulse_at = now

    def deaf(self, now: int) -> bool:
        """Whether nobody's silence means anything."""
        return now - self._pulse_at > DEAF_NS

    def unsure(self, at: int) -> bool:
        """Whether nobody's silence means anything, or may not."""
        return self.deaf(at) or self._doubts()

    def stored(self, node: str, words: bytes | None, now: int) -> None:
        """The last heartbeat that the log's bus has stored of a node, None for none."""
        if words is not None and self._words.get(node) != words:
            self._words[node] = words
            self._at[node] = now
            self.alive.discard(node)

    def heard(self, moment: Moment) -> dict[str, int]:
        """When each node was last heard, as UTC nanoseconds."""
        return {node: moment.now - (moment.at - at) for node, at in self._at.items()}
