"""What the log shows of an app's work: what adjusting it costs, and how fast it works with which partition.

A decision is worth its utilization times its duration, less the pauses and repeated work of the apps that it changes.
OASiS (arXiv 1801.00936) likewise charges a resize against the job's own progress, and Chicle (arXiv 1909.04885) shows
how much apps differ: some continue at the next iteration, others restore for minutes.  So each app's own past counts:
the costs of its latest adjustments, in seconds of its work, for the price that the optimizer sets on a change.

A speed is a point: a stretch of reported progress with the same members.  It follows from the first and the last report
of the stretch alone, so it does not matter how many reports between them are kept on the log.  Points of an app with a
lone past are completed by those of apps like it (`Alike`), of the same user only: reports of one user's apps decide
nothing for another's.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from dorm.core.state import MeasuredSpeed
from dorm.policies.problem import Measured
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import AdjustmentRecord, App, Generation, State


# --- costs ------------------------------------------------------------------------------------------------------------

LATEST = 5
"""Number of adjustments that count: enough to even out one that waited for another app's room, few enough to follow an
app whose checkpoints grow."""


UNMEASURED_LIVE_S = 1.0
"""Assumed cost of a live resize until one was measured: members agree on it within a few iterations."""


def adjust_s(app: App) -> float | None:
    """Return the seconds of its work that one adjustment of this app costs: the mean over its latest few finished ones of
    pause and lost work, to the millisecond; None if none was measured.  For an app that is resized live only its live
    adjustments count, and for others only restarts."""
    live = is_live(app)
    costs = [cost for record in app.history if record.live == live and (cost := cost_s(record)) is not None][-LATEST:]
    if not costs:
        return UNMEASURED_LIVE_S if live else None
    return round(sum(costs) / len(costs), 3)


def held_since(current: Generation) -> int:
    """Return since when (UTC ns) an app has had its present containers: from their decision, or the membership's."""
    return max(current.decided_at, current.committed_at)


def usual_adjust_s(state: State) -> float | None:
    """Return the median cost of a restart over the apps with a measured one, running or ended; None if there
    are none.

    A median, because one app's minutes say nothing about the others."""
    known = [cost for app in state.apps.values() if not is_live(app) and (cost := adjust_s(app)) is not None]
    return median(known) if known else None


def is_live(app: App) -> bool:
    """Return whether the app's next adjustment is a live one, as long as a member of it stays."""
    return app.spec.elastic == "live" and not app.missed_live


def cost_s(record: AdjustmentRecord) -> float | None:
    """Return the cost of one adjustment in seconds; None while it is in progress, and if it is unknown: for an app that
    reported steps and whose pace with the earlier containers was not measured.

    The pause lasts from the decision, or the end of the preparation, until the app ran again: all its containers had
    started, and, if the app reports progress, it worked again: the time of its first report less the time that its steps took.
    They are taken at the earlier pace, scaled by the containers: an app may report progress seldom, and takes longer
    for each step after it shrank.  Until it has checkpointed and stopped, the app may still work, so this is an upper
    bound of its standstill; work done meanwhile can't be distinguished from lost work.  Lost work is the steps done
    after the checkpoint, at the earlier pace.

    A live adjustment costs the pause that its leader reported: the app works until then and loses nothing.
    """
    if record.live:
        return record.pause_s
    if not record.started_at or bool(record.steps_per_s) != bool(record.resumed_at):
        return None
    lost_s = record.lost_steps / record.steps_per_s if record.steps_per_s else 0.0
    ran_at = works_at(record, reports=bool(record.steps_per_s)) or record.started_at
    return max(0, ran_at - (record.prepared_at or record.decided_at)) / SECOND + lost_s


def works_at(record: AdjustmentRecord, *, reports: bool) -> int | None:
    """Return when the app worked again after an adjustment (log time): its containers had started, and, if it reports
    progress, it was at its first step.  That is when it first reported, less the time that the steps before took.  None while
    it has not come so far."""
    if not record.started_at or (reports and not record.resumed_at):
        return None
    if not record.resumed_at:
        return record.started_at
    if not record.steps_per_s:
        return max(record.started_at, record.resumed_at)
    done = max(0, record.resumed_step - (record.checkpoint or 0))
    pace = record.steps_per_s * record.containers_after / max(1, record.containers_before)
    return max(record.started_at, record.resumed_at - int(done / pace * SECOND))


def first_step_at(app: App, generation: int, reported_at: int) -> int:
    """Return when a generation came to its first step, which it first reported at this log time: as `works_at` says for one
    after an adjustment; of others nothing says how long the reported steps took."""
    last = app.history[-1] if app.history else None
    if last is None or last.live or last.to_generation != generation:
        return reported_at
    return works_at(last, reports=True) or reported_at


# --- speeds -----------------------------------------------------------------------------------------------------------

MOST_POINTS = 24
"""Number of different partitions of an app that are remembered: the longest measured ones."""
LATEST_NS = 3_600 * 10**9
"""Age beyond which a point counts half, so that the estimate follows an app whose steps change."""
LEAST_NS = 10**9
"""Shortest stretch that says something."""


def point_of(state: State, generation: Generation) -> MeasuredSpeed | None:
    """Return what the current members have done since the membership began; None if too little was reported."""
    pace = generation.pace
    if pace is None or not generation.containers:
        return None
    first_at, first_step, since = pace.first_at, pace.first_step, generation.same_since
    if since is not None and since.at > first_at:
        first_at, first_step = since.at, since.step
    steps, ns = pace.last_step - first_step, pace.last_at - first_at
    if steps <= 0 or ns < LEAST_NS:
        return None
    names = {container.node: None for container in generation.containers.values()}
    types = {node.labels.get("type", ""): None for name in names if (node := state.nodes.get(name)) is not None}
    kind = next(iter(types)) if len(types) == 1 else ""
    return MeasuredSpeed(len(generation.containers), len(names), kind, steps, ns)


def with_point(points: list[MeasuredSpeed], new: MeasuredSpeed) -> list[MeasuredSpeed]:
    """Return the points, ascending by partition, with a further stretch added to the point of the same partition."""
    steps, ns = new.steps, new.ns
    others = []
    for point in points:
        if (point.containers, point.nodes, point.type) == (new.containers, new.nodes, new.type):
            steps, ns = steps + point.steps, ns + point.ns
        else:
            others.append(point)
    while ns > LATEST_NS:
        steps, ns = (steps + 1) // 2, ns // 2
    merged = MeasuredSpeed(new.containers, new.nodes, new.type, steps, ns)
    kept = sorted([*others, merged], key=lambda point: (point is not merged, -point.ns, point.containers, point.nodes))
    return sorted(kept[:MOST_POINTS], key=lambda point: (point.containers, point.nodes, point.type))


def measured(state: State, app: App) -> tuple[Measured, ...]:
    """Return what is known of the app's speed, with the stretch that it works in now."""
    points = app.speeds
    current = app.current
    if current is not None and current.released and (new := point_of(state, current)) is not None:
        points = with_point(points, new)
    return tuple(
        Measured(point.containers, point.steps * 1e9 / point.ns, point.ns / 1e9, point.nodes, point.type)
        for point in points
    )


class Alike:
    """Measurements of apps with the same image and command, for apps without measurements of their own.

    Only apps of the same user count: reports of one user's apps decide nothing for another's."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._types = {node.type for node in state.nodes.values()}
        self._of_types: dict[tuple[object, ...], tuple[Measured, ...]] = {}
        self._apps: dict[tuple[object, ...], list[App]] = {}
        for app in state.apps.values():
            if app.speeds or app.reports_progress:
                self._apps.setdefault(_likeness(app), []).append(app)

    def of(self, app: App) -> tuple[Measured, ...]:
        """Return the points of the app most like it: the latest submitted other app that has any."""
        for other in _latest(other for other in self._apps.get(_likeness(app), ()) if other is not app):
            if points := measured(self._state, other):
                return points
        return ()

    def of_types(self, app: App, known: tuple[Measured, ...]) -> tuple[Measured, ...]:
        """Return what shows how much faster a type of nodes is for apps like one that has not worked on several: the points of
        the latest that has, else of all of them together.  `known` are its own points."""
        if len(self._types) < 2 or len({point.type for point in known}) > 1:
            return ()
        like = _likeness(app)
        if like not in self._of_types:
            each = [measured(self._state, other) for other in _latest(self._apps.get(like, ()))]
            together = tuple(point for points in each for point in points)
            several = (points for points in (*each, together) if len({point.type for point in points}) > 1)
            self._of_types[like] = next(several, ())
        return self._of_types[like]


def _latest(apps: Iterable[App]) -> list[App]:
    return sorted(apps, key=lambda app: -app.seq)[:8]


def _likeness(app: App) -> tuple[object, ...]:
    return app.user, app.spec.image, *app.spec.command
