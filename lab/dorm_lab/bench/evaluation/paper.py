"""The paper's workload in the evaluation: its contenders, and the variations that show how sensitive the outcome is.

Workload and static counts are `dorm_lab.workloads.paper`'s; the variations are fixed here before anything is run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from dorm_lab.bench.evaluation.parts import HEADLINE, SPEED, Job, Part, declaring, in_rounds
from dorm_lab.workloads import paper
from replay.simulator.contenders import STATIC_COUNTS, Contender, with_timings
from replay.simulator.scenario import Scenario, Tasks
from replay.simulator.speed import Amdahl
from replay.simulator.timings import LIVE, Timings

if TYPE_CHECKING:
    from replay.simulator.speed import Speed
    from replay.simulator.workload import Workload

SETTINGS = ((0.2, 0.1), (0.1, 0.2), (0.1, 0.1))
"""θ1 and θ2, the paper's three."""
ROUND_S = 60.0
"""Interval of a policy whose answer may change though nothing happens; as in Pollux's simulator (OSDI 2021, §5)."""


class Variation(msgspec.Struct, frozen=True):
    """One row of the sensitivity table: what differs from the paper's part."""

    name: str
    part: Part
    label: str = HEADLINE
    """The contender whose figures it shows, against the part's base."""


def dorm(theta1: float = 0.1, theta2: float = 0.1, **more: Any) -> Contender:
    return Contender(f"dorm {theta1:g}/{theta2:g}", "dorm", {"theta1": theta1, "theta2": theta2}, **more)


def static(factor: float = 1.0) -> Contender:
    """Return the baseline with its counts times a factor, within the bounds of their apps."""
    counts = {
        f"{kind.name}-*": min(kind.n_max, max(kind.n_min, math.floor(kind.static * factor + 0.5)))
        for kind in paper.APP_TYPES
    }
    return Contender("static", "static", {"counts": counts})


def contenders() -> tuple[Contender, ...]:
    """Return all contenders on the paper's workload.  Tiresias gives each app what its owner requests: the static counts."""
    return (
        *(dorm(theta1, theta2) for theta1, theta2 in SETTINGS),
        static(),
        Contender("app-level", "app-level"),
        Contender("task-level", "task-level", tasks=Tasks()),
        Contender("tiresias", "tiresias", {"counts": STATIC_COUNTS}),
        Contender("optimus", "optimus"),
        Contender(SPEED, "dorm-speed"),
    )


def whole(seeds: int, apps: int | None = None) -> Part:
    """Return the part of all contenders; `apps` limits the workload's apps."""
    about = (
        f"{seeds} seeds of 50 apps on 20 nodes, as docs/workloads.md describes them.  Utilization and fairness loss "
        "are of the first 24 hours, or until the first contender has done all of the work, whichever comes first."
    )
    return part("paper", "The paper's workload", contenders(), seeds, apps=apps, about=(about, *paper.ASSUMPTIONS))


def part(
    key: str,
    title: str,
    against: tuple[Contender, ...],
    seeds: int,
    *,
    apps: int | None = None,
    about: tuple[str, ...] = (),
    hours: float = paper.DURATION_H,
    speed: Speed | None = None,
    timings: Timings | None = None,
) -> Part:
    jobs = []
    for contender in against:
        for seed in range(seeds):
            workload = paper.workload(seed, hours=hours, speed=speed)
            jobs.append(Job(contender.label, _scenario(workload, contender, apps, timings)))
    return Part(key=key, title=title, jobs=tuple(jobs), base="static", window_s=paper.HORIZON_S, about=about)


def _scenario(workload: Workload, contender: Contender, apps: int | None, timings: Timings | None) -> Scenario:
    apps_ = tuple(declaring(app) for app in workload.apps[:apps])
    scenario = contender.of(in_rounds(Scenario(apps=apps_, nodes=workload.nodes), contender, ROUND_S))
    return scenario if timings is None else with_timings(scenario, timings)


def variations(seeds: int, apps: int | None) -> tuple[Variation, ...]:
    both = (dorm(), static())
    usual = Timings()
    tenfold = Timings(
        checkpoint_s=10 * usual.checkpoint_s, stop_s=10 * usual.stop_s, start_s=10 * usual.start_s,
        boot_s=10 * usual.boot_s, resume_s=10 * usual.resume_s,
    )  # fmt: skip
    half_minute = Timings(checkpoint_s=0.0, stop_s=0.0, start_s=0.0, boot_s=30.0, resume_s=30.0)

    def varied(name: str, against: tuple[Contender, ...] = both, **given: Any) -> Part:
        return part(f"varied-{name}", name, against, seeds, apps=apps, **given)

    def by_tasks(overhead_s: float) -> tuple[Contender, ...]:
        return (*both, Contender("task-level", "task-level", tasks=Tasks(overhead_s=overhead_s)))

    return (
        Variation("restart of 30 s", varied("pause-30", timings=half_minute)),
        Variation("live resizing", varied("live", timings=LIVE)),
        Variation("static counts × 0.5", varied("static-half", (dorm(), static(0.5)))),
        Variation("static counts × 2", varied("static-double", (dorm(), static(2.0)))),
        Variation("durations × 0.5", varied("durations-half", hours=paper.DURATION_H / 2)),
        Variation("durations × 2", varied("durations-double", hours=paper.DURATION_H * 2)),
        Variation("Amdahl, 0.98 parallel", varied("amdahl-98", speed=Amdahl(0.98))),
        Variation("Amdahl, 0.95 parallel", varied("amdahl-95", speed=Amdahl(0.95))),
        Variation("pauses × 10", varied("pause-ten", timings=tenfold)),
        Variation("task-level, tasks of 1.5 s + 0.1 s", varied("tasks-light", by_tasks(0.1)), "task-level"),
        Variation("task-level, tasks of 1.5 s + 1 s", varied("tasks-heavy", by_tasks(1.0)), "task-level"),
    )
