"""Apps to come: what their owners say of them, and what only a simulation knows."""

from __future__ import annotations

import msgspec

from events.spec import AppSpec
from replay.simulator.timings import Timings
from replay.simulator.workloads.speed import Speed


class Failure(msgspec.Struct, frozen=True):
    """A container of an app fails by itself, and takes what was not saved with it."""

    work: float
    """Once so much is done, in the units of the app's speed."""
    exit_code: int = 1


class SimulatedApp(msgspec.Struct, frozen=True):
    """One app: its submission, and how it will go."""

    at_s: float
    """When it is submitted, in seconds from the workload's begin."""
    spec: AppSpec
    """With a name that is its own in the workload."""
    work: float
    """What it has to do, in the units of `speed`."""
    speed: Speed
    timings: Timings | None = None
    """Its own, where they differ from the scenario's."""
    steps_per_unit: float = 1.0
    """Steps that it tells of, for each unit of work."""
    cancel_at_s: float | None = None
    """When its owner gives it up, in seconds from the workload's begin."""
    fails_at: tuple[Failure, ...] = ()
    """Each happens once, one after the other; those beyond its work never."""
    submission: str = ""
    """The id of its submission, where it is that of a real log: the app's own id follows from it.  '' for one of its place."""
    line: int = 0
    """Of the trace that it was read from; 0 where it was not."""
    had: int = 0
    """Containers that it had there: what a fixed partition would give it; 0 where nobody knows."""


class SimulatedNode(msgspec.Struct, frozen=True):
    """A machine: what it has, in base units."""

    name: str
    capacity: dict[str, int]
    labels: dict[str, str] = {}


class Skipped(msgspec.Struct, frozen=True):
    """A row of a trace that is left out, and why."""

    line: int
    """From 1, the header included."""
    reason: str
    broken: bool = True
    """False for a row that is right and left out by rule, such as a job that never ran."""


class Workload(msgspec.Struct, frozen=True):
    """Apps in the order of their submission, and where they come from."""

    name: str
    apps: tuple[SimulatedApp, ...]
    nodes: tuple[SimulatedNode, ...] = ()
    """The cluster that belongs to it, where it names one."""
    skipped: tuple[Skipped, ...] = ()
    rows: int = 0
    """How many rows were read: apps, `skipped` and `cut` together; 0 for a workload that was not read."""
    cut: int = 0
    """Rows that are right and were not asked for (another week, beyond a limit)."""
    unsorted: tuple[int, ...] = ()
    """Lines whose submission is before that of the line above; they were put in order."""
    assumptions: tuple[str, ...] = ()
    """What its source leaves open and was chosen here, each a sentence for a report."""
