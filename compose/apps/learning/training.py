"""The training loop that the sample apps share: momentum descent on gradients summed over all workers.

One step of every worker: gradient of its shards, the sum over all (`collective`), the same update.  So every worker holds
the whole state, and rank 0 saves and reports it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from compose.apps.learning import checkpoint as checkpoints
from compose.apps.learning import digits, options
from compose.apps.learning.batches import Batches, shards_of
from compose.apps.learning.checkpoint import Checkpoint
from compose.apps.ring import collective
from compose.apps.worker import contract
from compose.apps.worker.failures import AppFailure, BadSetting, CheckpointUnusable, Diverged
from compose.apps.worker.presence import Presence
from compose.apps.worker.process import EXIT_STOPPED
from compose.apps.worker.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from compose.apps.learning.digits import Digits
    from compose.apps.learning.model import Model, Program
    from compose.apps.learning.options import Options
    from compose.apps.worker.arrays import Vector
    from compose.apps.worker.contract import Place
    from compose.apps.worker.process import Stop


class Sum(Protocol):
    """What adds up the workers' parts, in rank order: the ring, or an engine's own collective."""

    def sum(self, step: int, parts: Sequence[Vector], size: int, stop: Callable[[], bool]) -> tuple[Vector, bool]:
        """Return the sum of all workers' parts, and whether any worker was asked to stop.  Raises `PeerLost`."""
        ...

    def give_up(self, reason: str) -> None:
        """Send the others the reason why this worker leaves.  Never raises."""
        ...

    def close(self) -> None: ...


class Join(Protocol):
    """Joins all workers that share `run`, a digest of settings and state.  Raises `AppFailure`."""

    def __call__(self, place: Place, run: str, *, connect_timeout_s: float, peer_timeout_s: float) -> Sum: ...


def main(
    program: Program,
    stop: Stop,
    presence: Presence,
    arguments: Sequence[str] | None = None,
    *,
    read_place: Callable[[Mapping[str, str]], Place] = contract.read_place,
    join: Join = collective.join,
    worker: type[Worker] | None = None,
) -> int:
    """Run one worker to its end; return the exit code, after printing the reason if it is not 0.

    `read_place` reads the worker's place from the environment, `join` connects the workers, and `worker` is a worker with its
    own loop.
    """
    try:
        return _work(program, stop, presence, options.parse(program, arguments), read_place(os.environ), join, worker)
    except AppFailure as failure:
        print(f"{program.name}: {failure}", file=sys.stderr, flush=True)
        return failure.exit_code


def _work(
    program: Program,
    stop: Stop,
    presence: Presence,
    chosen: Options,
    place: Place,
    join: Join,
    kind: type[Worker] | None,
) -> int:
    data = digits.load(os.environ)
    model = program.build(data, chosen.sizes)
    if chosen.batch > model.rows:
        raise BadSetting(f"--batch is {chosen.batch}, but there are {model.rows} rows to train on")
    state = first_state(place, model, chosen, settings_of(program, chosen, data))
    progress = Progress(place.progress if place.rank == 0 else None)
    ring = join(place, state.digest(), connect_timeout_s=chosen.connect_timeout, peer_timeout_s=chosen.peer_timeout)
    stop.begin_training()
    worker = (kind or Worker)(place, model, chosen, ring, stop, progress, presence)
    how = f"resumes after step {state.step}" if chosen.resume else "starts"
    print(f"{program.name}: {place.label} {how}", flush=True)
    try:
        state = worker.train(state)
    except AppFailure as failure:
        if stop.asked and worker.saved_step == worker.step:
            return EXIT_STOPPED  # the others left at the same request a moment earlier, and no work was done since
        ring.give_up(str(failure))
        raise
    finally:
        ring.close()
    if state.step < chosen.steps:
        print(f"{program.name}: {place.label} stopped after step {state.step}", flush=True)
        return EXIT_STOPPED
    if place.rank == 0:
        result = {"step": state.step, "loss": state.loss, **model.quality(state.parameters)}
        print(json.dumps({"result": result}), flush=True)
    return 0


def settings_of(program: Program, chosen: Options, data: Digits) -> dict[str, Any]:
    """Return everything that determines the course of training, but not its length and speed."""
    return {
        "program": program.name,
        "data": hashlib.sha256(data.images.tobytes() + data.labels.tobytes()).hexdigest(),
        "seed": chosen.seed,
        "batch": chosen.batch,
        "learning-rate": chosen.learning_rate,
        "momentum": chosen.momentum,
        "l2": chosen.l2,
        **chosen.sizes,
    }


def first_state(place: Place, model: Model, chosen: Options, settings: dict[str, Any]) -> Checkpoint:
    """Return the state that training starts from.  An unusable checkpoint folder is detected here, not an hour later."""
    if place.rank == 0 and place.checkpoint_dir is not None:
        try:
            place.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadSetting(f"cannot make DORM_CHECKPOINT_DIR {place.checkpoint_dir}: {error.strerror}") from None
        if not os.access(place.checkpoint_dir, os.W_OK | os.X_OK):
            raise BadSetting(f"DORM_CHECKPOINT_DIR {place.checkpoint_dir} cannot be written to")
    start = model.start(np.random.default_rng([chosen.seed]))
    if chosen.resume:
        if place.checkpoint_dir is None:
            raise CheckpointUnusable("--resume needs DORM_CHECKPOINT_DIR")
        return checkpoints.load(place.checkpoint_dir, settings, len(start))
    return Checkpoint(step=0, loss=0.0, parameters=start, velocity=np.zeros_like(start), settings=settings)


@dataclass(slots=True)
class Worker:
    """One worker's part in the steps."""

    place: Place
    model: Model
    chosen: Options
    ring: Sum
    stop: Stop
    progress: Progress
    presence: Presence = field(default_factory=Presence)
    step: int = 0
    """The last step that, to this worker's knowledge, all workers have completed."""
    saved_step: int = 0
    """The step of the last checkpoint written or read (ranks other than 0 assume that it is written when due)."""

    def train(self, state: Checkpoint) -> Checkpoint:
        """Train until all steps are done or some worker is asked to stop; then the state is saved.

        Raises `PeerLost`, `Diverged`, and `AppFailure` if the state can't be saved.
        """
        self.step = self.saved_step = self.presence.step = state.step
        if state.step >= self.chosen.steps:
            self._report(state, 0.0)  # resumed after the last step: report again that it is done
            return state
        batches = Batches(self.model.rows, self.chosen.batch, self.chosen.seed)
        reported_step, reported_at = state.step, time.monotonic()
        stopping = False
        while state.step < self.chosen.steps and not stopping:
            with np.errstate(all="ignore"):  # a loss that is not a number is detected below
                state, stopping = self._one_step(state, batches)
            self.step = self.presence.step = state.step
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
        chosen, step = self.chosen, state.step + 1
        began = time.monotonic()
        rows = batches.shards(step)
        own = shards_of(self.place.rank, self.place.world_size)
        parts = []
        for shard in own:
            loss, gradient = self.model.gradient(state.parameters, rows[shard])
            parts.append(np.concatenate([[loss], gradient]))
        self.stop.rest(chosen.pace * len(own) - (time.monotonic() - began))

        total, stopping = self.ring.sum(step, parts, 1 + len(state.parameters), lambda: self.stop.asked)
        mean = total / chosen.batch
        loss = float(mean[0]) + 0.5 * chosen.l2 * float(state.parameters @ state.parameters)
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} at step {step}; try a smaller --learning-rate")
        gradient = mean[1:] + chosen.l2 * state.parameters
        velocity = chosen.momentum * state.velocity - chosen.learning_rate * gradient
        parameters = state.parameters + velocity
        return replace(state, step=step, loss=loss, parameters=parameters, velocity=velocity), stopping

    def _report(self, state: Checkpoint, samples_per_s: float) -> None:
        if self.place.rank == 0:
            self.progress.step(state.step, state.loss, samples_per_s)

    def _save(self, state: Checkpoint) -> None:
        if self.place.rank == 0 and self.place.checkpoint_dir is not None:
            checkpoints.save(self.place.checkpoint_dir, state)
            self.progress.checkpoint(state.step)
        self.saved_step = state.step
