"""Training whose batch size Dorm chooses (`DORM_BATCH`), with the gradient noise on which that choice depends.

The noise scale φ = tr(Σ) / |G|² follows from gradients of two sizes (McCandlish et al., arXiv 1812.06162, appendix A.1): of
each shard, and of the whole batch.  With b samples in a shard and B in the batch,

    |G|²   is estimated by  (B |G_B|² - b |G_b|²) / (B - b)
    tr(Σ)  is estimated by  (|G_b|² - |G_B|²) / (1/b - 1/B)

Both are without bias, and both are averaged over many steps before they are divided.

A step with m samples is worth g = m / m₀ · (φ + m₀) / (φ + m) steps with the initial m₀.  So the learning rate of the step is
multiplied by g (AdaScale, Johnson et al., ICML 2020), and progress is counted in steps with m₀: `--steps` and the reported
steps mean the same for any batch sizes.

Rank 0 reads the file at each step, and its number travels with the sum of the gradients, so all workers change at the same
step.  Shards are equal: a batch size is rounded to a multiple of their number.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compose.apps.learning.batches import SHARDS, Batches, shards_of
from compose.apps.learning.training import Worker
from compose.apps.worker.failures import Diverged

if TYPE_CHECKING:
    from compose.apps.learning.checkpoint import Checkpoint
    from compose.apps.worker.arrays import Vector

MEMORY = 0.98
"""The fraction that an average over steps keeps at each step: it spans about 50 of them."""
SURE = 20
"""Steps before the noise is reported: the average of fewer says little."""


def noise_parts(small: float, large: float, b: float, big: float) -> tuple[float, float]:
    """Return the estimates of |G|² and tr(Σ) from the squared lengths of mean gradients over `b` and over `big` samples."""
    return (big * large - b * small) / (big - b), (small - large) / (1 / b - 1 / big)


def gain(batch: float, initial: float, noise: float) -> float:
    """Return how many steps of the initial batch size a step with this one is worth."""
    return batch / initial * (noise + initial) / (noise + batch)


def batch_in(path: Path | None, initial: int, most: int) -> int:
    """Return the batch size that Dorm has decided, as a multiple of the number of shards; `initial` if it says nothing."""
    try:
        wanted = int(path.read_text()) if path is not None else initial
    except (OSError, ValueError):
        wanted = initial
    return min(max(round(wanted / SHARDS), 2), most // SHARDS) * SHARDS


@dataclass(slots=True)
class TunedWorker(Worker):
    """A worker whose batch size may change at each step.  `state.course` has the data that one step passes to the
    next."""

    file: Path | None = field(default_factory=lambda: Path(name) if (name := os.environ.get("DORM_BATCH")) else None)
    noise: float | None = None
    """Last estimate of the noise; None while too little is known."""
    samples: int = 0
    """Number of samples since the last report."""

    def train(self, state: Checkpoint) -> Checkpoint:
        if not state.course:
            batch = batch_in(None, self.chosen.batch, self.model.rows)
            state = replace(
                state, course={"steps": 0, "seen": 0, "batch": batch, "worth": 0.0, "g2": 0.0, "spread": 0.0}
            )
        self.step = self.saved_step = self.presence.step = state.step
        batches = Batches(self.model.rows, self.chosen.batch, self.chosen.seed)
        reported_at, stopping = time.monotonic(), False
        self.noise = _noise(state.course)
        if state.step >= self.chosen.steps:
            self._report(state, 0.0)  # resumed after the last step: report again that it is done
        while state.step < self.chosen.steps and not stopping:
            before = state
            with np.errstate(all="ignore"):  # a loss that is not a number is detected below
                state, stopping = self._one_step(state, batches)
            self.step = self.presence.step = state.step
            if state.course["batch"] != before.course["batch"] and self.place.rank == 0:
                self._report_change(before.course["batch"], state.course["batch"], state.step)
            last = stopping or state.step >= self.chosen.steps
            if last or _passes(before.step, state.step, self.chosen.report_every):
                now = time.monotonic()
                self._report(state, self.samples / max(now - reported_at, 1e-9))
                self.samples, reported_at = 0, now
            if last or _passes(before.step, state.step, self.chosen.checkpoint_every):
                self._save(state)
        return state

    def _one_step(self, state: Checkpoint, batches: Batches) -> tuple[Checkpoint, bool]:
        chosen, course = self.chosen, state.course
        batch, number = int(course["batch"]), int(course["steps"]) + 1
        began = time.monotonic()
        rows = batches.after(int(course["seen"]), batch)
        own = shards_of(self.place.rank, self.place.world_size)
        parts = [self._part(state.parameters, rows[shard]) for shard in own]
        if self.place.rank == 0:
            parts[0][2] = batch_in(self.file, chosen.batch, self.model.rows)
        # The heavier model that --pace simulates takes longer for more samples, and has fixed costs for each step.
        heavier = chosen.sizes["fixed-part"] / 100 + (1 - chosen.sizes["fixed-part"] / 100) * batch / chosen.batch
        self.stop.rest(chosen.pace * len(own) * heavier - (time.monotonic() - began))

        total, stopping = self.ring.sum(number, parts, 3 + len(state.parameters), lambda: self.stop.asked)
        mean = total[3:] / batch
        loss = float(total[0]) / batch + 0.5 * chosen.l2 * float(state.parameters @ state.parameters)
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} at step {state.step}; try a smaller --learning-rate")
        small, large = float(total[1]) / SHARDS, float(mean @ mean)
        course = self._learned(course, *noise_parts(small, large, batch / SHARDS, batch))
        self.noise = _noise(course)
        worth = gain(batch, chosen.batch, self.noise if self.noise is not None else 0.0)
        velocity = chosen.momentum * state.velocity - chosen.learning_rate * worth * (
            mean + chosen.l2 * state.parameters
        )
        done = course["worth"] + worth
        course = {**course, "steps": number, "seen": course["seen"] + batch, "batch": float(total[2]), "worth": done}
        self.samples += batch
        step = min(int(done + 1e-9), chosen.steps)
        parameters = state.parameters + velocity
        return replace(state, step=step, loss=loss, parameters=parameters, velocity=velocity, course=course), stopping

    def _part(self, parameters: Vector, rows: np.ndarray) -> Vector:
        """Return a shard's loss, the squared length of its mean gradient, a place for the next batch size, its gradient."""
        loss, gradient = self.model.gradient(parameters, rows)
        mean = gradient / len(rows)
        return np.concatenate([[loss, float(mean @ mean), 0.0], gradient])

    def _learned(self, course: dict[str, float], g2: float, spread: float) -> dict[str, float]:
        """Return the averages with a further estimate, corrected for their start at 0 when they are read."""
        return {
            **course,
            "g2": MEMORY * course["g2"] + (1 - MEMORY) * g2,
            "spread": MEMORY * course["spread"] + (1 - MEMORY) * spread,
        }

    def _report_change(self, before: float, after: float, step: int) -> None:
        print(f"batch size {before:.0f} -> {after:.0f} after step {step}", flush=True)

    def _report(self, state: Checkpoint, samples_per_s: float) -> None:
        if self.place.rank == 0:
            noise = self.noise if state.course["steps"] >= SURE else None
            self.progress.step(state.step, state.loss, samples_per_s, noise)


def _noise(course: dict[str, float]) -> float | None:
    """Return the noise scale; None if the averages say nothing yet, or the gradient is lost in its noise."""
    if course["g2"] <= 0 or course["spread"] < 0:
        return None
    return course["spread"] / course["g2"]


def _passes(before: int, after: int, every: int) -> bool:
    return before // every < after // every
