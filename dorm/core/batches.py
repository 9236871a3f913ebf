"""Batch sizes of apps that accept several: the noise that they report, what a decision gives them, and why, in words.

An app whose spec has `batch` reports its gradient noise scale.  A policy that knows of batch sizes chooses one for each
such app (goodput), and the decision publishes those that are worth it: an app whose containers change gets any new size
with its start; one that keeps them only a size that differs by the factor `STEP`, since each change costs the app a
moment and the best size moves with every report.

A batch size that belongs to a change which is void holds too: the app has it when it next starts.  An edit of `batch`
ends it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from dorm.policies.registry import CHOOSE_BATCHES

if TYPE_CHECKING:
    from collections.abc import Collection

    from dorm.core.state import App, State
    from dorm.policies.problem import Allocation, AppDemand, Problem
    from events.kinds import Resized


# --- the fold ---------------------------------------------------------------------------------------------------------


def note_noise(app: App, noise: float) -> None:
    """Note the gradient noise scale; invalid values change nothing."""
    if app.spec.batch is not None and 0 <= noise < math.inf:
        app.noise = noise


def note_batches(state: State, event: Resized) -> None:
    """Note the batch sizes of a decision.  One that belongs to a change which is void holds too: the app has it when it next
    starts."""
    for name, size in event.batches.items():
        app = state.apps.get(name)
        if app is None or app.ended or app.spec.batch is None:
            state.counters.ignored += 1
        else:
            app.batch = size


# --- decisions --------------------------------------------------------------------------------------------------------

STEP = 1.2
"""Factor by which a new batch size has to differ for an app that keeps its containers: the best size moves a little
with every report of the noise, and goodput is flat around it."""
MOST_BATCHES = 500
"""Number of batch sizes in one decision; the others follow with the next ones."""


def batches_of(state: State, problem: Problem, answer: Allocation, changing: Collection[str]) -> dict[str, int]:
    """Return the new batch sizes, by app.  `changing` are the apps whose containers this decision changes."""
    changed: dict[str, int] = {}
    staying: dict[str, int] = {}
    for demand in problem.apps:
        size = _size(state.apps[demand.id], answer.batches.get(demand.id, 0))
        if not size:
            continue
        if demand.id in changing:
            changed[demand.id] = size
        elif _stays(demand, answer) and _differs(size, _has(state.apps[demand.id])):
            staying[demand.id] = size
    return dict(sorted([*changed.items(), *staying.items()][:MOST_BATCHES]))


def _size(app: App, size: int) -> int:
    """Return a batch size that the app accepts and does not have; 0 for none."""
    accepts = app.spec.batch
    if accepts is None or not accepts.least <= size <= accepts.most or size == _has(app):
        return 0
    return size


def _has(app: App) -> int:
    assert app.spec.batch is not None, "only an app that accepts several has a batch size"
    return app.batch or app.spec.batch.initial


def _stays(demand: AppDemand, answer: Allocation) -> bool:
    return not demand.pinned and bool(demand.current) and answer.counts.get(demand.id) == demand.holds


def _differs(size: int, before: int) -> bool:
    return max(size, before) >= STEP * min(size, before)


# --- in words ---------------------------------------------------------------------------------------------------------


class BatchNow(msgspec.Struct, frozen=True):
    """The batch sizes that an app accepts, in samples of one step over all its containers, and the one that it has."""

    now: int
    initial: int
    least: int
    most: int
    per_container: int
    noise: float | None
    """The gradient noise scale as it was reported last; None while it has reported none."""
    efficiency: float | None
    """The progress per sample, relative to a sample of the initial batch: (noise + initial) / (noise + now)."""
    steps: float | None
    """Number of steps of the initial size that one step is worth: the app's progress."""
    why: str
    """Reason as a sentence."""


def batch_now(app: App, state: State | None = None) -> BatchNow | None:
    """Return the batch size of an app that accepts several; without a `state` the policy in force is not known."""
    accepts = app.spec.batch
    if accepts is None:
        return None
    now, noise = app.batch or accepts.initial, app.noise
    efficiency = (noise + accepts.initial) / (noise + now) if noise is not None and noise + now > 0 else None
    steps = efficiency * now / accepts.initial if efficiency is not None else None
    why = _why(app, now, noise, efficiency, steps, state.settings.policy if state is not None else None)
    return BatchNow(
        now, accepts.initial, accepts.least, accepts.most, accepts.per_container, noise, efficiency, steps, why
    )


def _why(
    app: App, now: int, noise: float | None, efficiency: float | None, steps: float | None, policy: str | None
) -> str:
    assert app.spec.batch is not None, "only an app that accepts several has a reason for one"
    initial = app.spec.batch.initial
    if noise is None:
        return f"it has reported no gradient noise yet, so it has the initial {initial}"
    if policy is not None and policy not in CHOOSE_BATCHES:
        kept = "keeps what was decided before" if app.batch else f"has the initial {initial}"
        return f"the policy {policy} chooses no batch sizes, so it {kept}"
    if not app.batch:
        if not app.spec.speed:
            return f"its spec declares no speed, which a choice needs, so it has the initial {initial}"
        return f"no size that differs by {STEP - 1:.0%} or more is better, so it has the initial {initial}"
    assert efficiency is not None
    assert steps is not None
    return (
        f"with a noise of {noise:.4g} samples, each of {now} samples teaches {efficiency:.0%} of one among {initial}, so a "
        f"step is worth {steps:.3g} initial ones; that was the best progress per second when it was decided"
    )
