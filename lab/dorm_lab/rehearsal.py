"""Simulates a real run with models in place of its apps, to measure how far a simulation is from what happened.

Requests of clients and operators come at the log's own times.  The speed of apps and the length of adjustments come from a
`Fitting` of another log, or of an earlier part of the same one, and the work from the apps' owners (`AppSpec.steps`).  So the
simulation knew none of the compared figures.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING

import msgspec

from events.quantities import SECOND
from replay.simulator import SimulationError
from replay.simulator.forks.fitting_timings import Phases, PhaseWatch
from replay.simulator.forks.history import Course
from replay.simulator.scenario import DecisionTime, Scenario
from replay.simulator.simulation import Simulation
from replay.simulator.workload import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dorm.core.state import State
    from replay.simulator.forks.fitting import Fitting
    from replay.simulator.forks.history import History
    from replay.simulator.timings import Timings

_LEAD_S = 1.0
"""Time from the simulation's start to its first submission: nodes have joined by then."""
_TOLD_S = 0.5
"""Seconds between progress reports of simulated apps, as in the benches' clusters."""


class Row(msgspec.Struct, frozen=True):
    """One quantity, in seconds: real and simulated."""

    name: str
    real_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """The error as a fraction of the real value; 0 if both are 0."""
        off = self.simulated_s - self.real_s
        return off / self.real_s if self.real_s else 0.0 if not off else float("inf")


class Rehearsed(msgspec.Struct, frozen=True):
    """The outcome of a simulation."""

    phases: list[Phases]
    completions: dict[str, float]
    """Seconds from submission to end, by app, for apps that ended."""
    sizes: dict[str, list[int]]
    """Containers of each released generation, by app."""


def rehearse(
    outside: History, last: State, fitting: Fitting, decisions_s: Sequence[float], timings: Timings | None = None
) -> Rehearsed:
    """Simulate the run that `outside` and its `last` state describe, until its end.  `decisions_s` are times that decisions
    took elsewhere; `timings`, if given, are those of all apps and replace those of `fitting`.  Raises SimulationError if no
    app was submitted."""
    if not outside.courses:
        raise SimulationError("no app was submitted in this run", code="simulation.no_apps")
    begin = min(course.submitted_at for course in outside.courses.values()) - int(_LEAD_S * SECOND)
    bare = [
        Course(course.app, course.spec, course.user, course.submission, course.submitted_at)
        for course in outside.courses.values()
    ]  # Without their outcomes.
    models = [fitting.fit(course, begin).model for course in bare]
    if timings is not None:
        models = [msgspec.structs.replace(model, timings=timings) for model in models]
    settings = last.settings
    scenario = Scenario(
        apps=tuple(models),
        nodes=tuple(SimulatedNode(node.id, node.capacity, node.labels) for node in last.nodes.values()),
        policy=settings.policy,
        params=settings.params,
        quiet_s=settings.quiet_ms / 1000,
        quiet_limit_s=settings.quiet_limit_ms / 1000,
        idle_s=settings.idle_s,
        timings=timings or fitting.common,
        decision_time=DecisionTime(median(decisions_s), 0.0) if decisions_s else DecisionTime(),
        progress_s=_TOLD_S,
        until_s=_until_s(outside, begin),
    )
    simulation = Simulation(scenario)
    watch = PhaseWatch(simulation.state)
    simulation.observe(watch.see)
    for recorded in outside.published:
        if recorded.at >= begin:
            simulation.publish_at((recorded.at - begin) / SECOND, recorded.event, recorded.who)
    state = simulation.run()
    return Rehearsed(watch.phases, completions(state), sizes(watch.phases))


def _until_s(outside: History, begin: int) -> float | None:
    """Return None if all apps ended, else the seconds for which the run was observed."""
    if all(course.ended for course in outside.courses.values()):
        return None
    return (outside.end - begin) / SECOND


def completions(state: State) -> dict[str, float]:
    """By app: seconds from submission to completion."""
    return {
        app.name: (app.ended_at - app.submitted_at) / SECOND
        for app in sorted(state.apps.values(), key=lambda app: app.seq)
        if app.ended == "completed"
    }


def sizes(phases: Iterable[Phases]) -> dict[str, list[int]]:
    """By app: the containers of each generation."""
    sizes_: dict[str, list[int]] = {}
    for phase in phases:
        sizes_.setdefault(phase.app, []).append(phase.containers)
    return sizes_


def phase_rows(real: Sequence[Phases], simulated: Sequence[Phases]) -> list[Row]:
    """Return the mean of each phase, over restarts that worked again, and of the whole pause, which is their sum.

    Raises SimulationError if there are none to compare."""
    really, also = ([phase for phase in many if phase.pause_s is not None] for many in (real, simulated))
    if not really or not also:
        raise SimulationError("no adjustment was finished, so none can be compared", code="simulation.no_adjustments")
    names = ("checkpoint", "stop", "wait", "start", "work", "pause")
    return [
        Row(name, *(fmean(getattr(phase, f"{name}_s") or 0.0 for phase in many) for many in (really, also)))
        for name in names
    ]


def completion_rows(real: dict[str, float], simulated: dict[str, float]) -> list[Row]:
    """Return rows for the apps that completed in both."""
    return [Row(name, took_s, simulated[name]) for name, took_s in real.items() if name in simulated]
