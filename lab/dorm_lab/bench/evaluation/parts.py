"""Parts of an evaluation, whose runs are compared with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm_lab.compare.comparison import Comparison
from replay.simulator.contenders import BY_TIME, LONG_ROUNDS_S
from replay.simulator.scenario import Rounds, Scenario

if TYPE_CHECKING:
    from replay.simulator.contenders import Contender
    from replay.simulator.outcome import Run
    from replay.simulator.workload import SimulatedApp

HEADLINE = "dorm 0.1/0.1"
"""The setting of (θ1, θ2) whose figures represent Dorm: of the paper's three, the one that both bounds restrict most.  Chosen
before anything was run."""
SPEED = "dorm-speed"
"""The policy that knows speeds and remaining work, with its default parameters."""
TUNED, EVENTS = "pollux_tuned", "pollux_events"
"""The part in which policies choose batch sizes, and the part that decides when something happens, and not in rounds."""
RIVALS = ("fifo", "srtf", "drf", "gavel", "themis", "shockwave", "market")
"""Policies of the literature that are compared on Pollux's workloads only, with their default parameters."""
WIDE = f"{HEADLINE}, up to 64"
"""The same, with up to as many containers as an app's profile covers; otherwise up to as many as its owner requested."""


class Job(msgspec.Struct, frozen=True):
    """One run of a part."""

    label: str
    scenario: Scenario


class Part(msgspec.Struct, frozen=True):
    """Runs that are compared with each other."""

    key: str
    """Prefix of its files and figures."""
    title: str
    jobs: tuple[Job, ...]
    """Jobs of each contender with its seeds, in the same order."""
    base: str
    every_s: float = 60.0
    """Seconds between two samples."""
    window_s: float | None = None
    about: tuple[str, ...] = ()
    """Sentences that a reader needs to know."""
    seeds: tuple[str, ...] = ()
    """Names of a contender's runs, if they have any."""

    def comparison(self, runs: list[Run]) -> Comparison:
        """Return the comparison; `runs` are in the order of the jobs."""
        by_label: dict[str, tuple[Run, ...]] = {}
        tasks: dict[str, float] = {}
        for job, run in zip(self.jobs, runs, strict=True):
            by_label[job.label] = (*by_label.get(job.label, ()), run)
            if job.scenario.tasks is not None:
                tasks[job.label] = 1 - job.scenario.tasks.efficiency
        return Comparison(self.title, by_label, base=self.base, window_s=self.window_s, tasks=tasks)


def in_rounds(scenario: Scenario, contender: Contender, every_s: float) -> Scenario:
    """Run policies that use attained or remaining service in rounds, others when something happens."""
    if contender.policy not in BY_TIME:
        return scenario
    period_s = max(every_s, LONG_ROUNDS_S.get(contender.policy, 0.0))
    return msgspec.structs.replace(scenario, rounds=Rounds(period_s, always=True), quiet_s=0.0)


def declaring(app: SimulatedApp) -> SimulatedApp:
    """Return the app with its work and speed declared: the input of `optimus` and `dorm-speed`, oracles as in Pollux's
    comparison (OSDI 2021, §5.1).  Other policies ignore it."""
    low, high = app.spec.n_min, app.spec.n_max
    counts = range(low, high + 1) if high - low < 64 else sorted({*range(low, high, (high - low) // 32), high})
    spec = msgspec.structs.replace(
        app.spec, steps=max(1, int(app.work)), speed=[(n, app.speed.rate((n,))) for n in counts]
    )
    return msgspec.structs.replace(app, spec=spec)
