"""A crash loop next to a healthy app: what its failures cost its neighbor under each policy.

Two nodes of two cores.  The victim fills them, works for ten minutes and saves every ten seconds.  After a minute comes the
crasher: one core, two seconds of work, an error, and a retry after one second, until the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dorm_lab.bench.evaluation.parts import HEADLINE, Job, Part, in_rounds
from dorm_lab.compare.report import Bullets, Heading, Table, percent
from events.spec import check_spec
from replay.simulator.contenders import Contender
from replay.simulator.scenario import Scenario, Tasks
from replay.simulator.speed import Linear
from replay.simulator.timings import Timings
from replay.simulator.workload import Failure, SimulatedApp, SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm_lab.compare.comparison import Comparison
    from dorm_lab.compare.report import Block
    from events.spec import AppSpec
    from replay.simulator.outcome import AppRun

KEY = "crash-loop"
VICTIM, CRASHER = "victim", "crasher"
UNTIL_S, ARRIVES_S = 600.0, 60.0
WORKS_S, PAUSE_S, TRIES = 2.0, 1.0, 1000
_ROUND_S = 60.0
_SAVES = Timings(checkpoint_every_s=10.0)
ALONE, TOGETHER = "alone", "next to the crash loop"


class Cost(NamedTuple):
    """The cost of the crash loop for the victim under one contender."""

    label: str
    restarts: int
    """Restarts of the victim, including the one for the crasher's arrival."""
    useful: float
    """Useful container-seconds of the victim, as a part of those without the crasher."""


def crash_loop() -> Part:
    jobs = [
        Job(contender.label, contender.of(in_rounds(_scenario(crashes=crashes), contender, _ROUND_S)))
        for contender in _contenders()
        for crashes in (False, True)
    ]
    about = (
        "Two nodes of two cores. The victim takes up to four containers, saves every ten seconds and runs to the end "
        "after ten minutes. The crasher arrives after one minute, works for two seconds in one container, raises, and "
        "is tried again after one second.",
        "Useful work is the victim's container time without the time lost to adjustments, relative to the same run "
        "without the crasher. Three of four containers for nine of ten minutes make 78 %.",
    )
    return Part(
        key=KEY,
        title="A crash loop next to a working app",
        jobs=tuple(jobs),
        base="static",
        about=about,
        seeds=(ALONE, TOGETHER),
    )


def costs(part: Part, comparison: Comparison) -> Iterator[Cost]:
    for label, runs in comparison.runs.items():
        alone, together = ({app.name: app for app in runs[part.seeds.index(name)].apps} for name in (ALONE, TOGETHER))
        yield Cost(label, together[VICTIM].adjustments, _useful_s(together[VICTIM]) / _useful_s(alone[VICTIM]))


def block(part: Part, comparison: Comparison) -> Iterator[Block]:
    """Yield this part's blocks of the report."""
    yield Heading(part.title)
    yield Bullets(part.about)
    rows = tuple((cost.label, f"{cost.restarts}", percent(cost.useful)) for cost in costs(part, comparison))
    yield Table(("contender", "restarts of the victim", "its useful work"), rows)


def cost_of_headline(part: Part, comparison: Comparison) -> Cost:
    return next(cost for cost in costs(part, comparison) if cost.label == HEADLINE)


def _useful_s(app: AppRun) -> float:
    return app.held_s - app.lost_s


def _contenders() -> tuple[Contender, ...]:
    return (
        Contender(HEADLINE, "dorm", {"theta1": 0.1, "theta2": 0.1}),
        Contender("static", "static", {"counts": {f"{VICTIM}-*": 3, f"{CRASHER}-*": 1}}),
        Contender("app-level", "app-level"),
        Contender("task-level", "task-level", tasks=Tasks()),
        Contender("tiresias", "tiresias", {"counts": {f"{VICTIM}-*": 3, f"{CRASHER}-*": 1}}),
        Contender("optimus", "optimus"),
    )


def _scenario(*, crashes: bool) -> Scenario:
    victim = SimulatedApp(
        at_s=0.0,
        spec=_spec(VICTIM, n_max=4, speed=[(count, float(count)) for count in range(1, 5)], steps=100_000),
        work=100_000.0,
        speed=Linear(),
        timings=_SAVES,
    )
    retries = {"limit": TRIES, "backoff": f"{PAUSE_S:g}s", "longest": f"{PAUSE_S:g}s"}
    crasher = SimulatedApp(
        at_s=ARRIVES_S,
        spec=_spec(CRASHER, n_max=1, speed=[(1, 1.0)], steps=100_000, retries=retries),
        work=100_000.0,
        speed=Linear(),
        steps_per_unit=5.0,
        fails_at=(Failure(WORKS_S),) * TRIES,
    )
    return Scenario(
        apps=(victim, crasher) if crashes else (victim,),
        nodes=tuple(SimulatedNode(name, {"cpu": 2000}) for name in ("node-1", "node-2")),
        progress_s=WORKS_S / 4,
        until_s=UNTIL_S,
    )


def _spec(name: str, **fields: object) -> AppSpec:
    return check_spec(
        {"name": name, "command": ["train"], "resume": ["train", "--resume"], "demand": {"cpu": 1}, **fields}
    )
