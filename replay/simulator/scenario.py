"""Everything that a run depends on."""

from __future__ import annotations

from typing import Any

import msgspec

from events.kinds import PolicyPlugin
from replay.simulator.timings import Timings
from replay.simulator.workload import SimulatedApp, SimulatedNode

BEGIN = 1_700_000_000_000_000_000
"""UTC ns at which a simulation starts that continues no log."""


class Outage(msgspec.Struct, frozen=True):
    """A node crashes, with everything that runs there, and comes back."""

    node: str
    at_s: float
    """Begin of the outage, in seconds from the start; negative if a fork starts in the middle of the outage."""
    for_s: float | None
    """None for an outage that never ends."""


class Tasks(msgspec.Struct, frozen=True):
    """Sharing by tasks: each container is a slot that runs short tasks one after the other, and each task pays for its launch.

    A slot works for task_s of every task_s + overhead_s.  The defaults are the figures of the Dorm paper's introduction
    for sharing by tasks (a mean task of 1.5 s, a scheduling latency of 430 ms), from memory and not checked against its
    text; they decide what such sharing costs, so an evaluation varies them."""

    task_s: float = 1.5
    overhead_s: float = 0.43

    @property
    def efficiency(self) -> float:
        return self.task_s / (self.task_s + self.overhead_s)


class DecisionTime(msgspec.Struct, frozen=True):
    """How long the master takes to decide: a fixed time and one per app × node of the problem, in seconds."""

    fixed_s: float = 0.01
    per_cell_s: float = 3e-7

    def seconds(self, apps: int, nodes: int) -> float:
        return self.fixed_s + self.per_cell_s * apps * nodes


class Rounds(msgspec.Struct, frozen=True):
    """Decisions at fixed times only, as in round-based schedulers, instead of when the log has been quiet."""

    every_s: float
    always: bool = False
    """Decide also when nothing has happened: for policies that use the service or the remaining work of apps."""


class Scenario(msgspec.Struct, frozen=True):
    """One run.  Equal scenarios give equal logs, byte for byte."""

    apps: tuple[SimulatedApp, ...]
    """Apps in the order of their submission."""
    nodes: tuple[SimulatedNode, ...]
    policy: str = "dorm"
    params: dict[str, Any] = {}
    quiet_s: float = 0.2
    quiet_limit_s: float = 1.0
    idle_s: float = 30.0
    rounds: Rounds | None = None
    """Set if decisions come in rounds: a log that has been quiet for `quiet_s` (which may be 0) waits for the next
    round."""
    retention_s: float = 3600.0
    """Seconds for which ended apps stay in the state; for a long trace it need not remember all of them."""
    timings: Timings = Timings()
    tasks: Tasks | None = None
    """Set if a policy shares by tasks: then adjustments are free and every task pays."""
    decision_time: DecisionTime = DecisionTime()
    outages: tuple[Outage, ...] = ()
    progress_s: float = 60.0
    """Seconds between two progress reports of a working app; 0 for none."""
    until_s: float | None = None
    """Time at which the run is cut off, in seconds from its start; None: when nothing more can happen."""
    cluster: str = "simulated"
    plugins: tuple[PolicyPlugin, ...] = ()
    """The plug-in policies that the simulated master announces."""


class Running(msgspec.Struct, frozen=True):
    """A fork's knowledge of an app beyond the state: its model, and how much of its work is done."""

    model: SimulatedApp
    done: float = 0.0
    """Units of work that are done when the fork starts."""
    saved: float | None = None
    """Units from which a restart would continue; None for all that are done."""
    failures: int = 0
    """Number of its model's failures that are past."""
