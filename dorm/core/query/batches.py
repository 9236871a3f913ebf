"""The batch size that an app has now, and why: for explanations and descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.decide.batches import STEP
from dorm.policies.registry import CHOOSE_BATCHES

if TYPE_CHECKING:
    from dorm.core.state import App, State


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
    """How many steps of the initial size one step is worth: the app's progress."""
    why: str
    """A sentence."""


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
