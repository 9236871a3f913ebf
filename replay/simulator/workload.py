"""Apps to come: what their owners declare, and what only a simulation knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from events.spec import AppSpec
from replay.simulator.speed import Speed
from replay.simulator.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Iterable


class Failure(msgspec.Struct, frozen=True):
    """A container of an app fails by itself, and unsaved work is lost with it."""

    work: float
    """Work that is done when it happens, in the units of the app's speed."""
    exit_code: int = 1


class SimulatedApp(msgspec.Struct, frozen=True):
    """One app: its submission, and its course."""

    at_s: float
    """Time of its submission, in seconds from the workload's start."""
    spec: AppSpec
    """Spec with a name that is unique in the workload."""
    work: float
    """Total work of the app, in the units of `speed`."""
    speed: Speed
    timings: Timings | None = None
    """Timings of the app, if they differ from the scenario's."""
    steps_per_unit: float = 1.0
    """Steps that it reports for each unit of work."""
    cancel_at_s: float | None = None
    """Time at which its owner gives it up, in seconds from the workload's start."""
    fails_at: tuple[Failure, ...] = ()
    """Each happens once, in order; those beyond its work never."""
    submission: str = ""
    """The id of its submission if that is on a real log, since the app's id follows from it.  '' for an id from its index."""
    line: int = 0
    """Line of the job in the trace; 0 if it was not read from one."""
    had: int = 0
    """Containers that it had there, which a fixed partition would give it; 0 if unknown."""
    faster_on: dict[str, float] = {}
    """Factor by which it is faster on nodes of a type (the label `type`); 1 on types that are missing here.  A partition on
    several types works at the pace of the slowest, as each step waits for the last worker."""

    def pace_on(self, types: Iterable[str]) -> float:
        """Return how many times as fast it is on nodes of these types together."""
        return min((self.faster_on.get(name, 1.0) for name in types), default=1.0) if self.faster_on else 1.0


class SimulatedNode(msgspec.Struct, frozen=True):
    """A machine and its capacity, in base units."""

    name: str
    capacity: dict[str, int]
    labels: dict[str, str] = {}


class Skipped(msgspec.Struct, frozen=True):
    """A row of a trace that is left out, and why."""

    line: int
    """Number of the line, from 1, including the header."""
    reason: str
    code: str = ""
    """The reason as an error code, such as `trace.value.malformed`."""
    broken: bool = True
    """False for a valid row that is left out by rule, such as a job that never ran."""


class Workload(msgspec.Struct, frozen=True):
    """Apps in the order of their submission, and their origin."""

    name: str
    apps: tuple[SimulatedApp, ...]
    nodes: tuple[SimulatedNode, ...] = ()
    """The cluster that belongs to it, if it names one."""
    skipped: tuple[Skipped, ...] = ()
    rows: int = 0
    """Number of rows read: apps, `skipped` and `cut` together; 0 for a workload that was not read."""
    cut: int = 0
    """Valid rows that were not requested (another week, beyond a limit)."""
    unsorted: tuple[int, ...] = ()
    """Lines whose submission is before the previous line's; they were put in order."""
    assumptions: tuple[str, ...] = ()
    """Choices made here that its source leaves open, each a sentence for a report."""
