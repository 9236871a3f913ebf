"""The words of a timeline: lines of plain text for a decision, a mark, a phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from events.instants import length_of_phase, shown
from replay.story.story_words import planned
from replay.words import containers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.state import State
    from events import kinds as k
    from events.kinds import AppPlanned, ContainerExited
    from replay.timeline.lanes import Change, Decision, Mark, Partition, Timeline

_TRIGGERS = {
    "events": "triggered by events",
    "idle": "triggered by an idle tick",
    "deadline": "triggered by a deadline",
}

PLANS = 3
"""Plans of a round that are named one by one."""


def clock(time: int) -> str:
    """Format UTC nanoseconds as `2026-11-21 09:00:05.120 UTC`."""
    return shown(time, 3)


def exit_text(event: ContainerExited) -> str:
    """Describe how a container ended without being asked to."""
    code = f"exit code {event.exit_code}" if event.exit_code is not None else "no exit code"
    if event.reason == "exit":
        return f"ended with {code}"
    return f"ended: {event.reason.replace('_', ' ')}, {code}"


def change_text(change: Change) -> str:
    """`digits-mlp 4 → 6 (restart as generation 3)`."""
    void = ", overtaken" if change.void else ""
    how = f"{change.adjustment} as generation {change.generation}" if change.after else "waits"
    return f"{change.name} {change.before} → {change.after} ({how}{void})"


def plans_text(state: State, plans: Sequence[AppPlanned]) -> str:
    """Return the first plans of a round, one after the other, each with its app's name."""
    named = [(state.apps[plan.app].name if plan.app in state.apps else plan.app, plan) for plan in plans]
    parts = [f"{name} {planned(planned_app)}" for name, planned_app in named[:PLANS]]
    more = f", and {len(plans) - PLANS} more" if len(plans) > PLANS else ""
    return ". ".join(parts) + more


def decision_title(decision: Decision) -> str:
    """Return one line."""
    others = f", and {decision.stands_for - 1} more close to it" if decision.stands_for > 1 else ""
    return f"decision {decision.position}{others}"


def decision_lines(decision: Decision, resources: int) -> list[str]:
    """Describe a decision: policy and trigger, figures, changes, reasons.  `resources` is the upper bound of U."""
    trigger = _TRIGGERS.get(decision.trigger, decision.trigger)
    budget = f" of {decision.fairness_budget:.3g}" if decision.fairness_budget >= 0 else ""
    excess = f" ({decision.excess:.3g} over)" if decision.excess > 0 else ""
    overhead = f" of {decision.overhead_budget}" if decision.overhead_budget >= 0 else ""
    lines = [
        f"by {decision.policy} {decision.policy_version} ({decision.solver}: {decision.status}), "
        f"epoch {decision.epoch}; {trigger}",
        f"utilization {decision.utilization:.4g}" + (f" of {resources}" if resources else "")
        + f", fairness loss {decision.fairness_loss:.3g}{budget}{excess}",
        f"{decision.overhead}{overhead} running apps changed, priced at {decision.change_cost:.3g}"
        + (f"; {decision.short} wait for n_min" if decision.short else ""),
    ]  # fmt: skip
    lines += [f"• {change_text(change)}" for change in decision.changes]
    if decision.all_changes > len(decision.changes):
        lines.append(f"• and {decision.all_changes - len(decision.changes)} more changes")
    if not decision.all_changes:
        lines.append("• no changes, only new reasons")
    lines += [f"– {reason.name}: {reason.text} ({reason.code})" for reason in decision.reasons]
    if decision.all_reasons > len(decision.reasons):
        lines.append(f"– and {decision.all_reasons - len(decision.reasons)} more with reasons")
    return lines


def mark_line(mark: Mark, picture: Timeline) -> str:
    """Return one line, with the app and node that it is about."""
    app = picture.apps.get(mark.app)
    who = app.name if app else mark.app
    about = " on ".join(part for part in (who, mark.node) if part)
    more = f" ({mark.stands_for} of these)" if mark.stands_for > 1 else ""
    return (f"{about}: " if about else "") + mark.what + (f": {mark.text}" if mark.text else "") + more


def partition_lines(partition: Partition, end: int) -> list[str]:
    """Describe a generation: where it was, and the time of its adjustment."""
    places = ", ".join(f"{node}×{count}" for node, count in list(partition.nodes.items())[:8])
    more = f" and {len(partition.nodes) - 8} more nodes" if len(partition.nodes) > 8 else ""
    lines = [f"generation {partition.number}: {containers(partition.containers)} on {places}{more}"]
    if partition.void and not partition.released_at:
        return [*lines, f"decided at {partition.decision}, overtaken before its release"]
    took = ", ".join(f"{name} {length_of_phase(finish - begin)}" for name, begin, finish in partition.phases(end))
    lines.append(f"decided at {partition.decision} ({partition.adjustment})" + (f": {took}" if took else ""))
    if partition.previous:
        step = f"resumed at step {partition.checkpoint}" if partition.checkpoint is not None else "started over"
        steps = "step" if partition.lost_steps == 1 else "steps"
        lost = f", {partition.lost_steps} {steps} lost" if partition.lost_steps else ", no work lost"
        killed = f", {partition.killed} killed after the grace time" if partition.killed else ""
        lines.append(f"from generation {partition.previous} ({containers(partition.before)}): {step}{lost}{killed}")
    return lines


def scheduling_text(event: k.SchedulingPaused | k.SchedulingResumed) -> str:
    return f"scheduling {type(event).__name__.removeprefix('Scheduling').lower()}"


def settings_text(event: k.PolicyChanged) -> str:
    """Describe a change of settings, and who made it."""
    texts = {
        name: value
        for name, value in msgspec.structs.asdict(event).items()
        if value is not None and name not in ("id", "at", "by", "cause", "v")
    }
    return ", ".join(f"{name} {value}" for name, value in texts.items()) + (f" (by {event.by})" if event.by else "")
