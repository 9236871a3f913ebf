"""What adjusting an app costs, as measured on the log: seconds of its work, for the price that the optimizer sets on a
change.

A decision is worth its utilization times its duration, less the pauses and repeated work of the apps that it changes.  OASiS
(arXiv 1801.00936) likewise charges a resize against the job's own progress, and Chicle (arXiv 1909.04885) shows how much apps
differ: some continue at the next iteration, others restore for minutes.  So each app's own past counts.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.state import AdjustmentRecord, App, Generation, State

LATEST = 5
"""How many adjustments count: enough to even out one that waited for another app's room, few enough to follow an app whose
checkpoints grow."""


UNMEASURED_LIVE_S = 1.0
"""What a live resize is assumed to cost until one was measured: members agree on it within a few iterations."""


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
