"""What runs in a simulated cluster: the containers of each app, and the work that they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replay.simulator.timings import Timings
    from replay.simulator.workload import SimulatedApp

SECOND = 1_000_000_000


@dataclass
class Partition:
    """One app as it runs.  Work is counted up to `since`; what came later follows from `rate`."""

    app: str
    model: SimulatedApp
    timings: Timings
    efficiency: float = 1.0
    """The part of its containers' time that goes into its work (`scenario.Tasks`)."""
    generation: int = 0
    placement: dict[int, str] = field(default_factory=dict)
    """Node by slot, of the generation that was decided last."""
    runs: dict[int, str] = field(default_factory=dict)
    """Node by slot, of the containers that exist."""
    runs_generation: int = 0
    started: set[int] = field(default_factory=set)
    """Slots whose container has started."""
    done: float = 0.0
    """Units of work at `since`."""
    saved: float = 0.0
    """Units that a restart begins with."""
    rate: float = 0.0
    since: int = 0
    """UTC ns; 0 while it doesn't work."""
    turn: int = 0
    """Counts changes of what it is doing, so that whatever was planned before one is void after it."""
    stopping: bool = False
    ended: bool = False

    @property
    def step(self) -> int:
        """The last whole step that it has done, as it tells it."""
        return int(self.done * self.model.steps_per_unit)

    @property
    def counts(self) -> tuple[int, ...]:
        """Containers on each node, most first."""
        by_node: dict[str, int] = {}
        for node in self.runs.values():
            by_node[node] = by_node.get(node, 0) + 1
        return tuple(sorted(by_node.values(), reverse=True))

    def work(self, now: int) -> None:
        """It begins to work with what it has."""
        self.rate = self.model.speed.rate(self.counts) * self.efficiency
        self.since = now
        self.turn += 1

    def count(self, now: int) -> None:
        """Count what was done until now; it goes on."""
        if self.since:
            elapsed = (now - self.since) / SECOND
            self.done = min(self.model.work, self.done + self.rate * elapsed)
            every = self.timings.checkpoint_every_s
            if every > 0:
                self.saved = max(self.saved, self.done - self.rate * (elapsed % every))
            self.since = now

    def rest(self, now: int) -> None:
        """It stops working: nothing is lost yet."""
        self.count(now)
        self.since = 0
        self.turn += 1

    def fall_back(self) -> None:
        """What was not saved is lost."""
        self.done = self.saved

    def done_at(self) -> int | None:
        """When its work is done at this rate (UTC ns); None while it doesn't work, or would never be done."""
        if not self.since or self.rate <= 0:
            return None
        return self.since + max(0, round((self.model.work - self.done) / self.rate * SECOND))
