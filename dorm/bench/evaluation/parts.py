"""What an evaluation is made of: parts, whose runs are compared with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from replay.simulator.compare.comparison import Comparison
from replay.simulator.scenario import Rounds, Scenario

if TYPE_CHECKING:
    from replay.simulator.compare.contenders import Contender
    from replay.simulator.compare.outcome import Run
    from replay.simulator.workloads.workload import SimulatedApp

HEADLINE = "dorm 0.1/0.1"
"""The setting of (θ1, θ2) whose figures stand for Dorm: of the paper's three the one that both bounds hold back most.  Chosen
before anything was run."""
WIDE = f"{HEADLINE}, up to 64"
"""The same where apps may have as many containers as their profile covers; else it is as many as their owner asked for."""


class Job(msgspec.Struct, frozen=True):
    """One run of a part."""

    label: str
    scenario: Scenario


class Part(msgspec.Struct, frozen=True):
    """Runs that are compared with each other."""

    key: str
    """Of its files and figures."""
    title: str
    jobs: tuple[Job, ...]
    """For each contender its seeds, in the same order."""
    base: str
    every_s: float = 60.0
    """Seconds between two samples."""
    window_s: float | None = None
    about: tuple[str, ...] = ()
    """What a reader has to know of it: sentences."""
    seeds: tuple[str, ...] = ()
    """What each run of a contender is, where that has a name."""

    def comparison(self, runs: list[Run]) -> Comparison:
        """`runs` in the order of the jobs."""
        found: dict[str, tuple[Run, ...]] = {}
        tasks: dict[str, float] = {}
        for job, run in zip(self.jobs, runs, strict=True):
            found[job.label] = (*found.get(job.label, ()), run)
            if job.scenario.tasks is not None:
                tasks[job.label] = 1 - job.scenario.tasks.efficiency
        return Comparison(self.title, found, base=self.base, window_s=self.window_s, tasks=tasks)


def in_rounds(scenario: Scenario, contender: Contender, every_s: float) -> Scenario:
    """Policies that go by what apps were served, or have left, are asked again and again, others where something happens."""
    if contender.policy not in ("tiresias", "optimus"):
        return scenario
    return msgspec.structs.replace(scenario, rounds=Rounds(every_s, always=True), quiet_s=0.0)


def telling(app: SimulatedApp) -> SimulatedApp:
    """The same app, whose owner says how much work it is and how fast: what `optimus` goes by, an oracle as in Pollux's
    comparison (OSDI 2021, §5.1).  Policies that don't ask for it are none the wiser."""
    low, high = app.spec.n_min, app.spec.n_max
    counts = range(low, high + 1) if high - low < 64 else sorted({*range(low, high, (high - low) // 32), high})
    spec = msgspec.structs.replace(
        app.spec, steps=max(1, int(app.work)), speed=[(n, app.speed.rate((n,))) for n in counts]
    )
    return msgspec.structs.replace(app, spec=spec)
