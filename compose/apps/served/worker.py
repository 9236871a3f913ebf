"""A worker's loop: gradients of its shards out, new parameters in."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from compose.apps.learning import checkpoint as checkpoints
from compose.apps.learning.batches import Batches, shards_of
from compose.apps.worker.failures import Diverged

if TYPE_CHECKING:
    from compose.apps.learning.checkpoint import Checkpoint
    from compose.apps.learning.model import Model
    from compose.apps.learning.options import Options
    from compose.apps.served.connections import Servers
    from compose.apps.served.roles import Role
    from compose.apps.worker.contract import Place
    from compose.apps.worker.process import Stop
    from compose.apps.worker.progress import Progress


@dataclass(slots=True)
class Worker:
    """One worker.  Worker 0, the container of rank 0, sends the initial state, saves and reports."""

    place: Place
    role: Role
    model: Model
    chosen: Options
    servers: Servers
    stop: Stop
    progress: Progress
    step: int = field(default=0, init=False)
    saved_step: int = field(default=0, init=False)

    def train(self, state: Checkpoint) -> Checkpoint:
        """Train from this state to the last step, or until a container is asked to stop; either way the state is then saved.

        Raises `PeerLost`, `Diverged`, and `AppFailure` if the state can't be saved.
        """
        self.step = self.saved_step = state.step
        if self.role.number == 0:
            self.servers.set(state.parameters, state.velocity)
        if state.step >= self.chosen.steps:
            self._report(state, 0.0)  # resumed after the last step: report again that it is done
            return state
        batches = Batches(self.model.rows, self.chosen.batch, self.chosen.seed)
        reported_step, reported_at = state.step, time.monotonic()
        stopping = False
        while state.step < self.chosen.steps and not stopping:
            with np.errstate(all="ignore"):  # a loss that is not a number is detected below
                state, stopping = self._one_step(state, batches)
            self.step = state.step
            last = stopping or state.step == self.chosen.steps
            if last or state.step % self.chosen.report_every == 0:
                now = time.monotonic()
                samples = (state.step - reported_step) * self.chosen.batch
                self._report(state, samples / max(now - reported_at, 1e-9))
                reported_step, reported_at = state.step, now
            if last or state.step % self.chosen.checkpoint_every == 0:
                self._save(state)
        return state

    def _one_step(self, state: Checkpoint, batches: Batches) -> tuple[Checkpoint, bool]:
        step = state.step + 1
        began = time.monotonic()
        rows = batches.shards(step)
        own = shards_of(self.role.number, self.role.workers)
        computed = [self.model.gradient(state.parameters, rows[shard]) for shard in own]
        self.stop.rest(self.chosen.pace * len(own) - (time.monotonic() - began))

        losses, gradients = [loss for loss, _ in computed], [gradient for _, gradient in computed]
        answer, stopping = self.servers.step(step, losses, gradients, stop=self.stop.asked)
        loss = float(answer[0]) + 0.5 * self.chosen.l2 * float(state.parameters @ state.parameters)
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} at step {step}; try a smaller --learning-rate")
        return replace(state, step=step, loss=loss, parameters=answer[1:]), stopping

    def _report(self, state: Checkpoint, samples_per_s: float) -> None:
        if self.role.number == 0:
            self.progress.step(state.step, state.loss, samples_per_s)

    def _save(self, state: Checkpoint) -> None:
        if self.role.number == 0 and self.place.checkpoint_dir is not None:
            checkpoints.save(self.place.checkpoint_dir, replace(state, velocity=self.servers.velocity()))
            self.progress.checkpoint(state.step)
        self.saved_step = state.step
