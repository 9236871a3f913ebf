"""What adjusting an app costs, as measured on the log: seconds of its work, for the price that the optimizer sets on a
change.

A decision is worth its utilization times the time that it lasts, less what the apps that it changes stand still and do
again.  OASiS (arXiv 1801.00936) charges a resize so against the job's own progress, and Chicle (arXiv 1909.04885) shows how
far apart apps are in it: some go on at the next iteration, others restore for minutes.  So each app's own past counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.state import AdjustmentRecord, App

LATEST = 5
"""How many adjustments count: enough to even out one that waited for somebody else's room, few enough to follow an app
whose checkpoints grow."""


def adjust_s(app: App) -> float | None:
    """Seconds of its work that one adjustment of this app costs: the mean over its latest few finished ones of pause and
    lost work, to the millisecond; None where none was measured."""
    costs = [cost for record in app.history if (cost := cost_s(record)) is not None][-LATEST:]
    return round(sum(costs) / len(costs), 3) if costs else None


def cost_s(record: AdjustmentRecord) -> float | None:
    """Of one adjustment, in seconds; None while it is under way, and where it can't be known: of an app that told of steps
    and whose pace with the containers before was not seen.

    The pause is from the decision until the app ran again: all its containers had started, and, of an app that tells of its
    progress, it worked again: the first sign of it less the time that those steps took.  They were done at the pace from
    before, changed as its containers were: an app may tell of its progress seldom, and one that shrank takes longer for
    each step.  Until it has checkpointed and stopped, the app may still work, so this is an upper bound of the time it stands
    still; what it did meanwhile can't be told apart from what it lost.  Lost work are the steps done after the checkpoint, at
    the pace it had before.
    """
    if not record.started_at or bool(record.steps_per_s) != bool(record.resumed_at):
        return None
    ran_at = record.started_at
    lost_s = 0.0
    if record.steps_per_s:
        done = max(0, record.resumed_step - (record.checkpoint or 0))
        pace = record.steps_per_s * record.containers_after / max(1, record.containers_before)
        ran_at = max(ran_at, record.resumed_at - int(done / pace * SECOND))
        lost_s = record.lost_steps / record.steps_per_s
    return max(0, ran_at - record.decided_at) / SECOND + lost_s
