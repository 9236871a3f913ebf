"""A neural network with one hidden layer that recognises handwritten digits, data-parallel.

python3 -m compose.apps.mlp --steps 300 --hidden 64 [--resume]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if __name__ == "__main__":
    from compose.apps.worker import process

    stop, presence = process.prepare()  # before NumPy loads

import numpy as np

from compose.apps.learning import training
from compose.apps.learning.digits import CLASSES, PIXELS
from compose.apps.learning.heldout import split
from compose.apps.learning.model import Program, Size
from compose.apps.learning.softmax import accuracy, cross_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compose.apps.learning.digits import Digits
    from compose.apps.worker.arrays import Matrix, Rows, Vector


class Network:
    """Scores are tanh(x A) B, with a column of ones in x and one beside the hidden layer for the intercepts."""

    def __init__(self, data: Digits, sizes: Mapping[str, int]) -> None:
        self._hidden = sizes["hidden"]
        self._train, self._test = split(_with_ones(data.images), data.labels)
        self.rows = len(self._train.labels)

    def start(self, random: np.random.Generator) -> Vector:
        """Return parameters scaled as Glorot and Bengio (2010) advise for tanh; a network of zeros would stay symmetric."""
        first = random.standard_normal((PIXELS + 1) * self._hidden) * np.sqrt(2.0 / (PIXELS + self._hidden))
        second = random.standard_normal((self._hidden + 1) * CLASSES) * np.sqrt(2.0 / (self._hidden + CLASSES))
        return np.concatenate([first, second])

    def gradient(self, parameters: Vector, rows: Rows) -> tuple[float, Vector]:
        first, second = self._layers(parameters)
        inputs = self._train.inputs[rows]
        hidden = np.tanh(inputs @ first)
        outputs = _with_ones(hidden)
        loss, error = cross_entropy(outputs @ second, self._train.labels[rows])
        back = (error @ second[:-1].T) * (1.0 - hidden * hidden)
        return loss, np.concatenate([(inputs.T @ back).ravel(), (outputs.T @ error).ravel()])

    def quality(self, parameters: Vector) -> dict[str, float]:
        first, second = self._layers(parameters)

        def scores(inputs: Matrix) -> Matrix:
            return _with_ones(np.tanh(inputs @ first)) @ second

        return {
            "accuracy": accuracy(scores(self._train.inputs), self._train.labels),
            "held_out_accuracy": accuracy(scores(self._test.inputs), self._test.labels),
        }

    def _layers(self, parameters: Vector) -> tuple[Matrix, Matrix]:
        cut = (PIXELS + 1) * self._hidden
        return parameters[:cut].reshape(PIXELS + 1, self._hidden), parameters[cut:].reshape(self._hidden + 1, CLASSES)


def _with_ones(matrix: Matrix) -> Matrix:
    return np.hstack([matrix, np.ones((len(matrix), 1))])


PROGRAM = Program(
    name="mlp",
    summary="A neural network with one hidden layer that recognises handwritten digits.",
    build=Network,
    batch=360,
    learning_rate=0.1,
    momentum=0.9,
    l2=1e-4,
    sizes={"hidden": Size(default=64, most=8192, help="width of the hidden layer")},
)

if __name__ == "__main__":
    sys.exit(training.main(PROGRAM, stop, presence))
