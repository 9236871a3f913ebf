"""The containers of each simulated app, and the work that they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from events.quantities import SECOND
from replay.simulator.speed import BatchSpeed, after, rate_at, seconds_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.simulator.speed import Course
    from replay.simulator.timings import Timings
    from replay.simulator.workload import SimulatedApp

NEVER = 2**62
"""UTC ns (the year 2116): later times count as never, so every time fits into the log."""

Doing = Literal["", "starting", "booting", "working", "standing", "agreeing", "saving", "leaving"]
"""Idle (it has no containers); starting its containers; from there to its first work; working; idle, because a part of it is
gone; agreeing on another membership; saving; leaving. The last two follow a request to stop."""


@dataclass
class Partition:
    """A running app.  Work is counted up to `since`; later work follows from `rate`."""

    app: str
    model: SimulatedApp
    timings: Timings
    efficiency: float = 1.0
    """The part of its containers' time that goes into work (`scenario.Tasks`)."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The type of each node with a type."""
    generation: int = 0
    placement: dict[int, str] = field(default_factory=dict)
    """Node by slot, of the generation that was decided last."""
    runs: dict[int, str] = field(default_factory=dict)
    """Node by slot, of the containers that exist."""
    runs_generation: int = 0
    started: set[int] = field(default_factory=set)
    """Slots whose container has started."""
    live: bool = False
    """Whether it is resized while it works."""
    membership: int = 1
    """Last announced membership of a live app."""
    target: dict[int, str] = field(default_factory=dict)
    """Node by slot of that membership."""
    joining: dict[int, str] = field(default_factory=dict)
    """Newcomers, which exist and do not work yet: node by slot."""
    doing: Doing = ""
    done: float = 0.0
    """Units of work at `since`."""
    saved: float = 0.0
    """Units from which a restart continues."""
    rate: float = 0.0
    """Units per second."""
    batch: int = 0
    """Batch size as decided last; 0 while it has its own."""
    course: Course = ()
    """Speed from here on of an app whose batch size may change, which differs from epoch to epoch."""
    began: int = 0
    """UTC ns from which the intervals of its reports and checkpoints count."""
    since: int = 0
    """UTC ns; 0 while it does not work."""
    failures: int = 0
    """Number of its model's failures that are past."""
    turn: int = 0
    """Counts changes of `doing`; a change voids everything planned before it."""
    ended: bool = False

    @property
    def stopping(self) -> bool:
        return self.doing in ("saving", "leaving")

    @property
    def over(self) -> bool:
        """Whether it does nothing more: it ended, was asked to stop, or has no containers left."""
        return self.ended or self.stopping or not self.runs or self.runs_generation != self.generation

    def give_up_joining(self) -> None:
        """Newcomers stop with the rest."""
        self.runs, self.joining = {**self.runs, **self.joining}, {}

    @property
    def counts(self) -> tuple[int, ...]:
        """Containers on each node, in descending order."""
        by_node: dict[str, int] = {}
        for node in self.runs.values():
            by_node[node] = by_node.get(node, 0) + 1
        return tuple(sorted(by_node.values(), reverse=True))

    def turn_to(self, doing: Doing) -> None:
        """Change its activity; this voids everything planned before."""
        self.doing = doing
        self.turn += 1

    def work(self, now: int) -> None:
        """Start working with the containers and the batch size that it has."""
        speed = self.model.speed
        pace = self.efficiency * self.model.pace_on(self.types.get(node, "") for node in self.runs.values())
        if isinstance(speed, BatchSpeed):
            course = speed.course(self.counts, self.batch or speed.batch)
            self.course = tuple((until, rate * pace) for until, rate in course)
            self.rate = rate_at(self.course, self.done)
        else:
            self.rate = speed.rate(self.counts) * pace
        self.since = now
        self.turn_to("working")

    def done_by(self, now: int) -> float:
        """Units of work at `now`."""
        if not self.since:
            return self.done
        seconds = (now - self.since) / SECOND
        if self.course:
            return min(self.model.work, after(self.course, self.done, seconds))
        return min(self.model.work, self.done + self.rate * seconds)

    def rate_by(self, now: int) -> float:
        """Units per second at `now`."""
        return rate_at(self.course, self.done_by(now)) if self.course else self.rate

    def noise_by(self, now: int) -> float | None:
        """The gradient noise scale at `now`, in samples; None for an app whose batch size does not change."""
        speed = self.model.speed
        if not isinstance(speed, BatchSpeed):
            return None
        return round(speed.noise(self.done_by(now), self.batch or speed.batch), 6)

    def step_by(self, now: int) -> int:
        """Return the last whole step that it has done, as it reports it."""
        return int(self.done_by(now) * self.model.steps_per_unit)

    def rest(self, now: int, doing: Doing) -> None:
        """Stop working; nothing is lost yet."""
        self.done = self.done_by(now)
        self.since = 0
        self.turn_to(doing)

    def fall_back(self) -> None:
        """Lose unsaved work."""
        self.done = self.saved

    @property
    def failure_ahead(self) -> bool:
        """Whether it fails before its work is done."""
        return self.failures < len(self.model.fails_at) and self.model.fails_at[self.failures].work < self.model.work

    def done_at(self) -> int | None:
        """Return when its work is done at this rate, or its next failure comes (UTC ns).  None if it does not work or would
        never be done."""
        until = self.model.fails_at[self.failures].work if self.failure_ahead else self.model.work
        left = max(0.0, until - self.done)
        if not self.since or (self.rate <= 0 and left > 0):
            return None
        if self.course:
            takes = seconds_until(self.course, self.done, until) * SECOND
        else:
            takes = left / self.rate * SECOND if left else 0.0
        return self.since + round(takes) if takes < NEVER - self.since else None
