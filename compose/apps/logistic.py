"""Multinomial logistic regression on handwritten digits, data-parallel.

python3 -m compose.apps.logistic --steps 400 [--resume]
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
from compose.apps.learning.model import Program
from compose.apps.learning.softmax import accuracy, cross_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compose.apps.learning.digits import Digits
    from compose.apps.worker.arrays import Matrix, Rows, Vector


class Logistic:
    """Class probabilities are softmax(x W), with a column of ones in x for the intercept."""

    def __init__(self, data: Digits, _sizes: Mapping[str, int]) -> None:
        ones = np.ones((len(data.images), 1))
        self._train, self._test = split(np.hstack([data.images, ones]), data.labels)
        self.rows = len(self._train.labels)

    def start(self, random: np.random.Generator) -> Vector:
        return np.zeros((PIXELS + 1) * CLASSES)

    def gradient(self, parameters: Vector, rows: Rows) -> tuple[float, Vector]:
        inputs = self._train.inputs[rows]
        loss, error = cross_entropy(inputs @ _weights(parameters), self._train.labels[rows])
        return loss, (inputs.T @ error).ravel()

    def quality(self, parameters: Vector) -> dict[str, float]:
        weights = _weights(parameters)
        return {
            "accuracy": accuracy(self._train.inputs @ weights, self._train.labels),
            "held_out_accuracy": accuracy(self._test.inputs @ weights, self._test.labels),
        }


def _weights(parameters: Vector) -> Matrix:
    return parameters.reshape(PIXELS + 1, CLASSES)


PROGRAM = Program(
    name="logistic",
    summary="Multinomial logistic regression on handwritten digits.",
    build=Logistic,
    batch=720,
    learning_rate=0.5,
    momentum=0.9,
    l2=1e-4,
)

if __name__ == "__main__":
    sys.exit(training.main(PROGRAM, stop, presence))
