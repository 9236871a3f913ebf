"""The failure detector: when each node was last heard, and when silence is meaningful.

Silence is measured by the caller's monotonic clock, so a step of a wall clock never loses a node.  It counts only while a
heartbeat would have been heard:

    note_answer   the log answered; if it had not for longer than `CUT_OFF_NS` (it was down, this process was stopped, the
                  network was cut), this master was cut off, and every node counts as heard now
    stored        before a silence has consequences, the last stored heartbeat is read: one that this master did not hear
                  means that the node's heartbeats do not reach it, and the node counts as heard now
    restart       a master that has just started to lead has heard no node

Counting as heard is not the same as being heard: a lost node is back only when it was actually heard (`alive`).

All times are nanoseconds of the caller's monotonic clock unless stated to be UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dorm.core.leader import Moment

CUT_OFF_NS = 4_000_000_000
"""Nanoseconds without an answer of the log after which heartbeats may have been missed too."""


LOOK_NS = 1_000_000_000
"""Nanoseconds between two checks for silent nodes."""


class FailureDetector:
    """What one master has heard; no I/O and no clock.  The leader checks it once a second."""

    asks = True
    """Whether the last stored heartbeat is read before a silence has consequences."""

    def __init__(self, doubts: Callable[[], bool] = lambda: False) -> None:
        """`doubts` returns whether another sign shows that this master is cut off, such as a lease that is not renewed."""
        self._doubts = doubts
        self.alive: set[str] = set()
        """Nodes that were heard since the last restart."""
        self._at: dict[str, int] = {}
        """Times at which each node was heard, or last counted as heard."""
        self._heartbeats: dict[str, bytes] = {}
        """The last heartbeat of each node that was heard, or found stored."""
        self._answered_at = 0
        self._looked_at = 0

    def look_at(self) -> int:
        """Return when to check for silent nodes next."""
        return self._looked_at + LOOK_NS if self._looked_at else 0

    def looked(self, at: int) -> None:
        """Note that silent nodes were checked for."""
        self._looked_at = at

    def restart(self, nodes: Iterable[str], now: int) -> None:
        """Watch these nodes from now on, and count them as heard now."""
        self._at = dict.fromkeys(sorted(nodes), now)
        self._heartbeats = {node: heartbeat for node, heartbeat in self._heartbeats.items() if node in self._at}
        self._answered_at = now
        self.alive.clear()

    def note_heard(self, node: str, now: int, heartbeat: bytes | None = None) -> None:
        """Note that a node was heard; `heartbeat` is the message if it is a heartbeat."""
        self._at[node] = now
        self.alive.add(node)
        if heartbeat is not None:
            self._heartbeats[node] = heartbeat

    def note_answer(self, now: int) -> None:
        """Note that the log has answered."""
        if self.is_cut_off(now):
            self.restart(self._at, now)
        self._answered_at = now

    def is_cut_off(self, now: int) -> bool:
        """Return whether this master cannot hear nodes, so silence is meaningless."""
        return now - self._answered_at > CUT_OFF_NS

    def unsure(self, at: int) -> bool:
        """Return whether silence is meaningless, or may be."""
        return self.is_cut_off(at) or self._doubts()

    def stored(self, node: str, heartbeat: bytes | None, now: int) -> None:
        """Note the last stored heartbeat of a node, None for none."""
        if heartbeat is not None and self._heartbeats.get(node) != heartbeat:
            self._heartbeats[node] = heartbeat
            self._at[node] = now
            self.alive.discard(node)

    def heard(self, moment: Moment) -> dict[str, int]:
        """Return when each node was last heard, in UTC nanoseconds."""
        return {node: moment.now - (moment.at - at) for node, at in self._at.items()}
