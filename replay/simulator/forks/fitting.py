"""Models of a real log's apps: how fast they work, how much work they have, how long adjusting them takes.

Each part records its `Basis`, and a result names the apps with guessed parts:

    speed     measured paces, by number of containers; beyond them Amdahl's law, fitted to the app's own paces, else its
              owner's table, else the paces of alike apps, else in proportion
    work      for an ended app, its work (computed from its speed if its last pace was never reported, which counts as
              less than known); else the steps that its owner declared; else what alike apps needed; else as much again
              as it has done; never less than the log has seen it do
    timings   its own phases, else those of all apps, else the defaults
    types     how much faster it is on some types of nodes, measured or declared (`fitting_types`); paces are of one type

Apps that report no steps are measured in container-seconds, with all containers equal: the most favorable assumption,
and the only one without a measurement.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from events.quantities import SECOND
from replay.simulator.forks.fitting_timings import fit as fit_timings
from replay.simulator.forks.fitting_types import SpeedOnTypes, TypesSeen, on_several, pace_on
from replay.simulator.speed import Linear, Table, interpolated
from replay.simulator.workload import Failure, SimulatedApp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dorm.core.state import App
    from dorm.policies.problem import Measured
    from events.spec import AppSpec
    from replay.simulator.forks.history import Course, History
    from replay.simulator.speed import Speed
    from replay.simulator.timings import Timings

UNKNOWN_S = 600.0
"""Assumed run time in seconds with n_min containers, if nothing is known of an app or of apps like it."""
NEVER_DONE = 1e6
"""Assumed work of a cancelled app, in multiples of what it had done: all that is known is that its work was not done."""

ENOUGH_ALIKE = 5
"""Number of similar apps from which on their range is also used for the next one."""

Bound = Literal["least", "likely", "most"]
Basis = Literal["known", "cancelled", "declared", "measured", "alike", "guess"]
"""`known`: the log shows the outcome; `cancelled`: its owner ended it before its work was done; `declared` by its owner;
`measured` on this app; measured on `alike` apps."""


class Curve(msgspec.Struct, frozen=True, tag="curve"):
    """Measured paces, and Amdahl's law (AFIPS 1967) beyond them: S(n) = 1 / ((1 - p) + p / n)."""

    points: tuple[tuple[int, float], ...]
    """Containers and units per second, ascending by containers."""
    parallel: float = 1.0
    """p, from 0 to 1; 1 is in proportion."""
    across: float = 1.0
    """Speed of the app on several nodes, as a fraction of its speed on one."""

    def rate(self, placement: Sequence[int]) -> float:
        n = sum(placement)
        if n <= 0 or not self.points:
            return 0.0
        first, last = self.points[0], self.points[-1]
        near = first if n < first[0] else last if n > last[0] else None
        rate = near[1] * speed_up(self.parallel, n) / speed_up(self.parallel, near[0]) if near else 0.0
        return (rate if near else interpolated(self.points, n)) * (self.across if len(placement) > 1 else 1.0)


def speed_up(parallel: float, n: int) -> float:
    """S(n) of Amdahl's law."""
    return 1 / ((1 - parallel) + parallel / n)


class Fitted(msgspec.Struct, frozen=True):
    """One app's model, and the basis of each part."""

    app: str
    model: SimulatedApp
    """Model of the app, whose `at_s` counts from the moment of the fit; negative before it."""
    done: float
    """Units of work that it has done by then."""
    saved: float
    """Units from which a restart would continue."""
    failures: int
    """Number of its model's failures that are past."""
    least: float
    """The least total work, in units, by its history and similar apps; the model's own work if that is known."""
    most: float
    """The most total work, in units, likewise."""
    work_from: Basis
    speed_from: Basis
    timings_from: Basis

    @property
    def guessed(self) -> bool:
        """Whether its end is a guess."""
        return self.work_from == "guess" or (self.speed_from == "guess" and self.work_from != "cancelled")

    def as_if(self, bound: Bound) -> Fitted:
        """Return the model with as little or as much work as seems possible, if the work is not known."""
        work = {"least": self.least, "likely": self.model.work, "most": self.most}[bound]
        return msgspec.structs.replace(self, model=msgspec.structs.replace(self.model, work=work))


class _Work(NamedTuple):
    """An app's total work: the likely amount, and its bounds."""

    likely: float
    basis: Basis
    least: float
    most: float


class _Did(NamedTuple):
    """Work that an app has done, in units."""

    done: float
    """Work done by the moment of the fit."""
    by_end: float
    """Work done by the history's end, which may know more."""
    basis: Basis
    """Basis of `by_end`: `known`, or the basis of its speed if its last pace was never reported."""


def _surely(work: float, basis: Basis) -> _Work:
    return _Work(work, basis, work, work)


@dataclass
class _Pace:
    """An app's measured speed, or the speed of apps like it."""

    points: tuple[tuple[int, float], ...]
    parallel: float | None
    """None if only one number of containers was seen."""
    across: float


class Fitting:
    """The fits of all apps of a history; `fit` returns the model of one of them at a moment."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._alike: dict[tuple[object, ...], list[Course]] = defaultdict(list)
        for course in history.courses.values():
            for key in _likeness(course.spec, course.user):
                self._alike[key].append(course)
        self._types = TypesSeen(history)
        self._several: dict[tuple[object, ...], tuple[Measured, ...]] = {}
        self._paces = {
            course.app: pace for course in history.courses.values() if (pace := _pace(course, self._faster(course)))
        }
        phases = history.phases.phases
        self._phases = defaultdict(list)
        for phase in phases:
            self._phases[phase.app].append(phase)
        self.common = fit_timings(phases)
        """Timings of all apps together."""
        self._measured = bool(phases)
        known = [pace.parallel for pace in self._paces.values() if pace.parallel is not None]
        self._parallel = median(known) if known else None

    def fit(self, course: Course, at: int, app: App | None = None) -> Fitted:
        """Return its model as of `at` (UTC ns), and its progress then: none, unless `app` is given from the state."""
        faster = self._faster(course)
        in_steps, one_type, speed_from = self._speed(course, faster)
        speed = SpeedOnTypes(one_type, faster if in_steps else {})
        timings, timings_from = self._timings(course, in_steps=in_steps)
        if app is None:
            done = saved = 0.0
        elif in_steps:
            done, saved = _steps_of(app, at, speed, timings, self._history.type_of)
        else:
            done = saved = course.kept_s(at)
        failures = tuple(
            Failure(course.steps_at(failure, speed) if in_steps else course.work_s(failure), failure.exit_code)
            for failure in course.failures
        )
        by_end = (
            course.steps_at_end(speed, timings, self._history.end) if in_steps else course.kept_s(self._history.end)
        )
        exact: Basis = "known" if course.reports_its_end or not in_steps else speed_from
        work = self._work(course, _Did(done, by_end, exact), one_type, failures, in_steps=in_steps)
        model = SimulatedApp(
            at_s=(course.submitted_at - at) / SECOND,
            spec=course.spec,
            work=max(work.likely, done),
            speed=one_type,
            timings=timings,
            submission=course.submission,
            fails_at=failures,
            faster_on=dict(speed.faster),
        )
        return Fitted(
            app=course.app,
            model=model,
            done=done,
            saved=saved,
            failures=sum(1 for failure in course.failures if failure.at <= at),
            least=max(work.least, done),
            most=max(work.most, done),
            work_from=work.basis,
            speed_from=speed_from,
            timings_from=timings_from,
        )

    # --- speed ----------------------------------------------------------------------------------------------------------

    def _faster(self, course: Course) -> dict[str, float]:
        """Return how many times as fast it is on each type of nodes, if that differs."""
        return self._types.faster(course, lambda: self._on_several(course))

    def _on_several(self, course: Course) -> tuple[Measured, ...]:
        """Return measurements on types by apps like it."""
        for key in _likeness(course.spec, course.user):
            if any(other is not course for other in self._alike.get(key, ())[:2]):
                if key not in self._several:
                    self._several[key] = on_several(self._alike[key])
                return self._several[key]
        return ()

    def _speed(self, course: Course, faster: Mapping[str, float]) -> tuple[bool, Speed, Basis]:
        """Return whether its work is counted in steps, its speed on the type of the stated paces, and the basis."""
        own, spec = self._paces.get(course.app), course.spec
        declared = self._types.declared(course, faster)
        like = self._like_pace(course)
        if own is not None:
            if own.parallel is not None or spec.n_min == spec.n_max == own.points[0][0]:
                return True, Curve(own.points, 1.0 if own.parallel is None else own.parallel, own.across), "measured"
            if declared:
                return True, _through(own.points[0], declared), "declared"
            if like is not None and like.parallel is not None:
                return True, Curve(own.points, like.parallel, own.across), "alike"
            return True, Curve(own.points, 1.0 if self._parallel is None else self._parallel, own.across), "guess"
        if declared:
            return True, Table(declared), "declared"
        if like is not None and not course.stretches:
            return True, Curve(like.points, 1.0 if like.parallel is None else like.parallel, like.across), "alike"
        return False, Linear(), "guess"

    def _like_pace(self, course: Course) -> _Pace | None:
        """Return the combined paces of the apps most alike."""
        for key in _likeness(course.spec, course.user):
            others = [
                self._paces[alike.app] for alike in self._alike[key] if alike is not course and alike.app in self._paces
            ]
            if others:
                points = _averaged((n, rate, 1.0) for other in others for n, rate in other.points)
                return _Pace(points, _parallel(points), median(other.across for other in others))
        return None

    # --- work -----------------------------------------------------------------------------------------------------------

    def _work(self, course: Course, did: _Did, speed: Speed, failures: Sequence[Failure], *, in_steps: bool) -> _Work:
        """Return its total work and the basis of that; at least the work that it has done by the history's end."""
        total, done = did.by_end, max(did.done, did.by_end)
        if course.ended == "failed" and failures:
            return _surely(max(total, *(failure.work for failure in failures)) + 1.0, "known")
        came_out = course.ended in ("completed", "failed") and total > 0
        if came_out and did.basis == "known":
            return _surely(total, "known")
        if in_steps and course.spec.steps:
            return _surely(max(float(course.spec.steps), did.by_end), "declared")
        if came_out:
            return _surely(total, did.basis)
        if course.ended == "cancelled" and course.stretches:
            return _surely(max(total, 1.0) * NEVER_DONE, "cancelled")
        for key in _likeness(course.spec, course.user):
            totals = [total for other in self._alike[key] if (total := self._total(other, in_steps=in_steps)) > done]
            if totals:
                likely, least, most = median(totals), min(totals), max(totals)
                if len(totals) < ENOUGH_ALIKE:  # The next one may lie outside their range.
                    least, most = min(least, (done + likely) / 2), max(most, 2 * likely - done, 2 * done)
                return _Work(likely, "alike", least, most)
        typical = 0.0 if did.done > 0 else speed.rate((course.spec.n_min,)) * self._typical_s()
        likely = max(2 * done, typical)
        return _Work(likely, "guess", (done + likely) / 2, 2 * likely - done)

    def _typical_s(self) -> float:
        """Return the median app's seconds from submission to completion."""
        ended = [course for course in self._history.courses.values() if course.ended == "completed"]
        return median((past.ended_at - past.submitted_at) / SECOND for past in ended) if ended else UNKNOWN_S

    def _total(self, course: Course, *, in_steps: bool) -> float:
        """Return a completed app's total work in the same unit; 0 if unknown."""
        if course.ended != "completed":
            return 0.0
        if in_steps:
            return course.steps_at_end() if course.reports_progress else 0.0
        return 0.0 if course.reports_progress else course.kept_s(course.ended_at)

    # --- timings --------------------------------------------------------------------------------------------------------

    def _timings(self, course: Course, *, in_steps: bool) -> tuple[Timings, Basis]:
        own = self._phases.get(course.app, [])
        gaps = self._history.phases.checkpoint_gaps_s.get(course.app, [])
        timings = fit_timings(own, gaps_s=gaps, default=self.common)
        basis: Basis = "measured" if own else "alike" if self._measured else "guess"
        if not any(phase.kind == "restart" for phase in own):
            # An app that can resume, or saves by itself, is assumed to save when asked to stop.
            saves = bool(course.spec.resume or course.spec.checkpoint or gaps) or self.common.can_checkpoint
            timings = msgspec.structs.replace(timings, can_checkpoint=saves)
        if not in_steps:
            # Its work counts from when its containers had started, so time before it really worked is included.
            timings = msgspec.structs.replace(timings, boot_s=0.0, resume_s=0.0, can_checkpoint=True)
        return timings, basis


def _steps_of(
    app: App, at: int, speed: SpeedOnTypes, timings: Timings, type_of: Mapping[str, str]
) -> tuple[float, float]:
    """Return the steps that it has done at `at` (UTC ns), and those that are saved.  `type_of` has the type of each node."""
    saved = float(app.checkpoint or 0)
    works = next(
        (g for g in app.generations.values() if g.released and g.started_at and not g.exited and not g.failed), None
    )
    if works is None or app.ended:
        return saved, saved
    latest = app.generations[app.generation]
    until = min(at, latest.decided_at) if latest is not works else at
    pace = works.pace
    to_work_s = timings.resume_s if works.resume else timings.boot_s
    since = pace.last_at if pace else works.started_at + int(to_work_s * SECOND)
    by_node = works.by_node()
    rate = speed.rate(sorted(by_node.values(), reverse=True), [type_of.get(node, "") for node in by_node])
    return max(saved, app.step + rate * max(0, until - since) / SECOND), saved


def _likeness(spec: AppSpec, user: str) -> list[tuple[object, ...]]:
    """Return the keys of alike apps, closest first: the same command of one user, then the same name except for its
    numbers."""
    stem = re.sub(r"[0-9]+", "#", spec.name)
    return [("command", user, *spec.command), ("name", user, stem)]


def _pace(course: Course, faster: Mapping[str, float]) -> _Pace | None:
    """Return the pace from stretches in which it reported at least two steps in time; None without any.  `faster` says how
    many times as fast it is on each type of nodes."""
    stretches = [stretch for stretch in course.stretches if stretch.rate > 0 and stretch.containers]
    if not stretches:
        return None
    seen = [(stretch, stretch.rate / pace_on(faster, stretch.types)) for stretch in stretches]
    across = _across((len(stretch.counts) > 1, stretch.containers, rate) for stretch, rate in seen)
    averaged = _averaged(
        (stretch.containers, rate / (across if len(stretch.counts) > 1 else 1.0), stretch.rated_s)
        for stretch, rate in seen
    )
    return _Pace(averaged, _parallel(averaged), across)


def _across(seen: Iterable[tuple[bool, int, float]]) -> float:
    """Return the speed on several nodes as a fraction of that on one, from numbers of containers that were seen both ways."""
    rates: dict[int, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for several, n, rate in seen:
        rates[n][several].append(rate)
    parts = [median(spread) / median(single) for single, spread in rates.values() if single and spread]
    return median(parts) if parts else 1.0


def _averaged(seen: Iterable[tuple[int, float, float]]) -> tuple[tuple[int, float], ...]:
    """Return one rate for each number of containers, weighted by how long it was seen."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for n, rate, seconds in seen:
        weight = max(seconds, 1e-3)
        sums[n][0] += rate * weight
        sums[n][1] += weight
    return tuple((n, total / weight) for n, (total, weight) in sorted(sums.items()))


def _parallel(points: Sequence[tuple[int, float]]) -> float | None:
    """Return p of Amdahl's law through these points: the time of a step is a + b / n, so p = b / (a + b), by least squares.
    None for fewer than two."""
    if len(points) < 2:
        return None
    inverse = np.array([1 / n for n, _ in points])
    times = np.array([1 / rate for _, rate in points])
    slope, base = np.polyfit(inverse, times, 1)
    slope, base = max(float(slope), 0.0), max(float(base), 0.0)
    return slope / (slope + base) if slope + base > 0 else 1.0


def _through(point: tuple[int, float], declared: Sequence[tuple[int, float]]) -> Table:
    """Scale a declared table so that it goes through a measured point."""
    expected = interpolated(declared, point[0])
    scale = point[1] / expected if expected > 0 else 1.0
    return Table(tuple((n, rate * scale) for n, rate in declared))
