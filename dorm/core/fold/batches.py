"""The fold of batch sizes: the noise that an app reports, and the batch size that a decision gives it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events.kinds import Resized


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
