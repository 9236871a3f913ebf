"""A small neural network in NumPy, trained by mini-batch SGD or by local SGD.

Mini-batch SGD computes the gradient of each chunk by itself and adds them in a fixed order, so the trajectory has the same
bits for any number of members.  In local SGD, each member takes several steps by itself, and then the models are averaged,
weighted by samples (Chicle, section 5): fewer sums, and a result that depends on the number of members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from dorm.elastic.job import Job, Step

    Array = npt.NDArray[np.float64]

__all__ = ["Network", "local_sgd", "minibatch_sgd"]


class Network:
    """One hidden layer (ReLU) and a softmax over classes.  `state_dict` makes it part of a job's state."""

    def __init__(self, inputs: int, hidden: int, classes: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.arrays: list[Array] = [
            generator.normal(0.0, np.sqrt(2.0 / inputs), (inputs, hidden)),
            np.zeros(hidden),
            generator.normal(0.0, np.sqrt(2.0 / hidden), (hidden, classes)),
            np.zeros(classes),
        ]

    def state_dict(self) -> dict[str, list[Array]]:
        return {"arrays": self.arrays}

    def load_state_dict(self, state: dict[str, list[Array]]) -> None:
        for own, other in zip(self.arrays, state["arrays"]):
            own[...] = other

    def gradient(self, features: Array, labels: npt.NDArray[np.integer]) -> tuple[list[Array], float]:
        """Return the sums over these samples of the gradients of the cross entropy, by array, and of the cross entropy."""
        first, bias, second, last = self.arrays
        hidden = np.maximum(features @ first + bias, 0.0)
        scores = hidden @ second + last
        scores -= scores.max(axis=1, keepdims=True) if len(scores) else 0.0
        log_total = np.log(np.exp(scores).sum(axis=1))
        rows = np.arange(len(labels))
        loss = float(np.sum(log_total - scores[rows, labels]))
        output = np.exp(scores - log_total[:, None])
        output[rows, labels] -= 1.0
        inner = (output @ second.T) * (hidden > 0)
        return [features.T @ inner, inner.sum(axis=0), hidden.T @ output, output.sum(axis=0)], loss

    def predict(self, features: Array) -> npt.NDArray[np.int64]:
        first, bias, second, last = self.arrays
        return np.asarray(np.argmax(np.maximum(features @ first + bias, 0.0) @ second + last, axis=1), dtype=np.int64)


def minibatch_sgd(
    job: Job,
    network: Network,
    features: Array,
    labels: npt.NDArray[np.integer],
    *,
    batch: int,
    rate: float,
    epochs: int,
    chunks: int | None = None,
    seed: int = 0,
) -> Iterator[tuple[Step, float]]:
    """Train `network`, which is part of the job's state, and yield each complete step with its loss (mean over the batch)."""

    def part(samples: npt.NDArray[np.int64]) -> list[Array | float]:
        gradients, loss = network.gradient(features[samples], labels[samples])
        return [*gradients, loss]

    for step in job.steps(len(labels), batch=batch, epochs=epochs, chunks=chunks, seed=seed):
        *gradients, loss = step.sum_over(part)
        for array, gradient in zip(network.arrays, gradients):
            array -= (rate / step.batch) * gradient
        if not step.interrupted:
            step.report(loss=loss / step.batch)
            yield step, loss / step.batch


def local_sgd(
    job: Job,
    network: Network,
    features: Array,
    labels: npt.NDArray[np.integer],
    *,
    batch: int,
    local_batch: int,
    rate: float,
    epochs: int,
    chunks: int | None = None,
    seed: int = 0,
    tasks: int = 1,
) -> Iterator[tuple[Step, float]]:
    """Train `network` by local SGD: in each step every member goes over its share of the batch in pieces of `local_batch`,
    then the models are averaged.  Yields each complete step with its loss (mean over the batch, measured on the way).

    `tasks` divides each member's share into this many independent tasks, each with its own model: micro-tasks, for
    comparison."""
    for step in job.steps(len(labels), batch=batch, epochs=epochs, chunks=chunks, seed=seed):
        total, loss = [np.zeros_like(array) for array in network.arrays], 0.0
        for samples in np.array_split(step.indices, tasks):
            own = Network.__new__(Network)
            own.arrays = [array.copy() for array in network.arrays]
            for low in range(0, len(samples), local_batch):
                piece = samples[low : low + local_batch]
                gradients, lost = own.gradient(features[piece], labels[piece])
                loss += lost
                for array, gradient in zip(own.arrays, gradients):
                    array -= (rate / len(piece)) * gradient
            for sum_of, array in zip(total, own.arrays):
                sum_of += len(samples) * array
        share = max(1, len(step.indices))
        averaged = step.allreduce([*(array / share for array in total), loss / share])
        if not step.interrupted:
            network.load_state_dict({"arrays": averaged[:-1]})
            step.report(loss=averaged[-1])
            yield step, averaged[-1]
