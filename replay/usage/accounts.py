"""The account of one app: which nodes keep room for it, and since when an adjustment keeps it from working.

All amounts are integers: container-nanoseconds by node.  They become amounts of resources when they are summed up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.query.views import room_held
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.state import AdjustmentRecord, App, Generation

NEVER = 2**63 - 1


class Held:
    """Container-nanoseconds on one node."""

    __slots__ = ("given", "paused", "redone")

    def __init__(self) -> None:
        self.given = self.paused = self.redone = 0


class Account:
    """One app that holds room, or may soon."""

    __slots__ = ("_live", "_redone", "_resumed", "app", "awaits", "demand", "held", "nodes", "paused_from", "since")

    def __init__(self, app: App, now: int) -> None:
        self.app = app
        self.demand = dict(app.demand)
        """Resources of one container."""
        self.since = now
        self.held: dict[str, int] = {}
        """Containers by node that have room, from `since` on."""
        self.paused_from = NEVER
        """From when on (log time) an adjustment keeps it from working."""
        self.nodes: dict[str, Held] = {}
        """The sum since the last `take`."""
        self.awaits = False
        """Whether its first report after an adjustment would end the pause."""
        self._live = self._redone = self._resumed = app.history[-1] if app.history else None
        """The last adjustment whose pause, repeated work and first report are added up."""

    def run_to(self, now: int) -> None:
        """Add up its holding until now."""
        time = now - self.since
        if time <= 0:
            return
        paused = min(time, max(0, now - self.paused_from))
        for node, count in self.held.items():
            sums = self._of(node)
            sums.given += count * time
            sums.paused += count * paused
        self.since = now

    def look(self, app: App, now: int) -> None:
        """Take over its holding from now on; `run_to(now)` was called."""
        self.app = app
        self.held = {node: count for node, count in room_held(app).items() if count}
        self.paused_from = _paused_from(app, now)
        last = app.history[-1] if app.history else None
        self.awaits = last is not None and last is not self._resumed and not last.live and bool(last.started_at)

    def reported(self) -> None:
        """Add the pause between the start of all containers and the first work that they report (`dorm.core.costs`)."""
        last = self.app.history[-1]
        if not last.resumed_at:
            return
        self.awaits, self._resumed = False, last
        if last.steps_per_s:
            done = max(0, last.resumed_step - (last.checkpoint or 0))
            pace = last.steps_per_s * last.containers_after / max(1, last.containers_before)
            pause = last.resumed_at - int(done / pace * SECOND) - last.started_at
            self._spread(max(0, pause) * last.containers_after, paused=True)

    def redone(self, last: AdjustmentRecord) -> None:
        """Add the work that an adjustment has repeated, once."""
        if last is not self._redone and last.steps_per_s and last.lost_steps:
            self._redone = last
            self._spread(int(last.lost_steps / last.steps_per_s * SECOND) * last.containers_before, paused=False)

    def resized_live(self, last: AdjustmentRecord) -> None:
        """Add the pause that the leader of a live app reported, once."""
        if last is not self._live and last.live:
            self._live = last
            self._spread(int(last.pause_s * SECOND) * last.containers_after, paused=True)

    def take(self) -> dict[str, Held]:
        """Return the sums by node, and begin again."""
        taken, self.nodes = self.nodes, {}
        return taken

    def _of(self, node: str) -> Held:
        found = self.nodes.get(node)
        if found is None:
            found = self.nodes[node] = Held()
        return found

    def _spread(self, amount: int, *, paused: bool) -> None:
        """Divide container-nanoseconds among the nodes that it is on, so that the parts add up exactly."""
        left, containers = amount, sum(self.held.values())
        for node, count in self.held.items():
            part = left * count // containers
            left, containers = left - part, containers - count
            sums = self._of(node)
            if paused:
                sums.paused += part
            else:
                sums.redone += part


def _paused_from(app: App, now: int) -> int:
    """Return from when an adjustment pauses the app, which may be in the future; NEVER if none does."""
    current = app.current
    if app.ended or current is None or current.adjustment != "restart" or current.started_at:
        return NEVER
    if current.prepare_until and _works(app, current):
        return current.prepared_at or current.prepare_until
    return now


def _works(app: App, current: Generation) -> bool:
    """Return whether the generation before may still work."""
    return any(number != current.number and not generation.ended for number, generation in app.generations.items())
