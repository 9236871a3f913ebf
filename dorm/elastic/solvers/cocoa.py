"""CoCoA: generalized linear models over elastic members.

Each member improves the dual variables of all of its samples by SDCA against a copy of the model; the members' changes of
the model are then added (Ma, Smith, Jaggi et al., *Adding vs. Averaging in Distributed Primal-Dual Optimization*, ICML
2015, algorithm 1 with γ = 1 and σ' = K, the number of members).  Dual variables belong to chunks and move with them, so a
resize loses nothing.  If a member dies, the dual variables of its chunks are lost: they start at zero again, and the model is
adapted to the remaining ones.

The gap between primal and dual objective bounds how far the model is from the optimum, so a result certifies itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dorm.elastic.chunks import mixed
from dorm.elastic.errors import ContractError
from dorm.elastic.solvers.losses import LOSSES
from dorm.elastic.solvers.scale_in import ScaleIn

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from dorm.elastic.job import Job, Step
    from dorm.elastic.solvers.losses import Loss

    Vector = npt.NDArray[np.float64]

__all__ = ["Round", "solve"]


@dataclass(frozen=True)
class Round:
    """One pass over the data.  Objective and gap are those of the model before it."""

    number: int
    members: int
    objective: float
    gap: float


def solve(
    job: Job,
    model: Vector,
    features: npt.NDArray[np.floating],
    labels: npt.NDArray[np.floating],
    *,
    loss: str = "logistic",
    l2: float,
    gap: float = 1e-3,
    rounds: int = 1000,
    chunks: int | None = None,
    seed: int = 0,
    tasks: int = 1,
    scale_in: bool = False,
) -> Iterator[Round]:
    """Improve `model` (shape (d,), part of the job's state, at first zero) until the duality gap is at most `gap`.

    `features` has shape (n, d) and `labels` (n,); every member reads the rows of its chunks.  `l2` is λ > 0.  `tasks` divides
    each member's samples into this many independent tasks: micro-tasks, for comparison; K is then the number of all
    tasks.  With `scale_in` the job asks its cluster for half of the members whenever the gap falls more slowly than before
    (`dorm.elastic.solvers.scale_in`): late in a run, fewer members need less time.

    Yields each round on every member.  Raises ContractError.
    """
    if loss not in LOSSES:
        raise ContractError(f"loss is {loss!r}; known are {', '.join(sorted(LOSSES))}", code="elastic.contract.loss")
    if not l2 > 0:
        raise ContractError(f"l2 is {l2}; it must be above 0", code="elastic.contract.l2")
    problem = _Problem(features, np.asarray(labels, dtype=np.float64), LOSSES[loss], l2)
    total = len(labels)
    steps = job.steps(
        total,
        batch=total,
        epochs=rounds,
        chunks=chunks,
        seed=seed,
        values=lambda _, samples: {"alpha": np.zeros(len(samples))},
    )
    scaling = ScaleIn() if scale_in else None
    for step in steps:
        began = time.monotonic()
        if step.lost:
            model[...] = step.allreduce([problem.model_of(step)], op="sum")[0]
        workers = len(job.members) * tasks
        losses, conjugates = problem.objective(step, model)
        change, alphas = problem.improve(step, model, workers, tasks)
        change, losses, conjugates = step.allreduce([change, losses, conjugates], op="sum")
        if step.interrupted:
            continue
        norm = 0.5 * l2 * float(model @ model)
        between = float(losses + conjugates) / total + 2 * norm
        completed = Round(step.epoch, len(job.members), float(losses) / total + norm, between)
        model += change
        for chunk, alpha in alphas.items():
            step.values[chunk]["alpha"] = alpha
        step.report(loss=completed.objective, gap=completed.gap)
        if scaling is not None and (wish := scaling.round(completed.members, completed.gap, began)) is not None:
            job.request_size(wish.size, wish.reason)
        yield completed
        if completed.gap <= gap:
            return


class _Problem:
    def __init__(self, features: npt.NDArray[np.floating], labels: Vector, loss: Loss, l2: float) -> None:
        self._features, self._labels, self._loss = features, labels, loss
        self._scale = 1.0 / (l2 * len(labels))
        """1/(λn)."""

    def model_of(self, step: Step) -> Vector:
        """Return this member's part of w(α)."""
        total = np.zeros(self._features.shape[1])
        for chunk, samples in step.chunk_samples.items():
            total += self._features[samples.start : samples.stop].T @ step.values[chunk]["alpha"]
        return total * self._scale

    def objective(self, step: Step, model: Vector) -> tuple[float, float]:
        """Return the sums of losses and of conjugates over this member's samples."""
        losses = conjugates = 0.0
        for chunk, samples in step.chunk_samples.items():
            labels = self._labels[samples.start : samples.stop]
            losses += self._loss.value(self._features[samples.start : samples.stop] @ model, labels)
            conjugates += self._loss.conjugate(step.values[chunk]["alpha"], labels)
        return losses, conjugates

    def improve(self, step: Step, model: Vector, workers: int, tasks: int) -> tuple[Vector, dict[int, Vector]]:
        """Return the change of the model, and the new dual variables by chunk, after one pass over this member's samples."""
        alphas = {chunk: np.array(step.values[chunk]["alpha"]) for chunk in step.chunks}
        total = np.zeros_like(model)
        for task in range(tasks):
            chunks = step.chunks[task::tasks]
            if not chunks:
                continue
            # All chunks at once: one after the other, SDCA needs many times as many passes if neighbors are alike.
            samples = np.concatenate([step.parts[chunk] for chunk in chunks])
            order = np.argsort(mixed(samples.astype(np.uint64), step.number), kind="stable")
            places = {chunk: step.parts[chunk] - step.chunk_samples[chunk].start for chunk in chunks}
            known = np.concatenate([alphas[chunk][places[chunk]] for chunk in chunks])
            total += self._pass(samples[order], order, known, model, workers)
            ends = np.cumsum([len(place) for place in places.values()])
            for chunk, part in zip(chunks, np.split(known, ends[:-1])):
                alphas[chunk][places[chunk]] = part
        return total, alphas

    def _pass(
        self, samples: npt.NDArray[np.int64], places: npt.NDArray[np.int64], alpha: Vector, model: Vector, workers: int
    ) -> Vector:
        """One pass of SDCA over these samples, whose dual variables are at these places; changes `alpha`, and returns the
        change of the model."""
        rows = self._features[samples]
        squares = np.einsum("ij,ij->i", rows, rows) * (workers * self._scale)
        fixed = rows @ model
        labels, step = self._labels[samples], self._loss.step
        change = np.zeros_like(model)
        for index, place in enumerate(places):
            row = rows[index]
            prediction = float(fixed[index]) + workers * float(row @ change)
            old = float(alpha[place])
            new = step(old, prediction, float(labels[index]), float(squares[index]))
            if new != old:
                alpha[place] = new
                change += row * ((new - old) * self._scale)
        return change
