"""Matrix factorisation of the digits (rows are images, columns pixels) by gradient descent, data-parallel.

python3 -m compose.apps.factorize --steps 300 --factors 8 [--resume]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if __name__ == "__main__":
    from compose.apps.worker import process

    stop, presence = process.prepare()  # before NumPy loads

import numpy as np

from compose.apps.learning import training
from compose.apps.learning.model import Program, Size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compose.apps.learning.digits import Digits
    from compose.apps.worker.arrays import Matrix, Rows, Vector


class Factorization:
    """X ≈ √n U Vᵀ for the n images X less their mean; loss ½‖row of X - its approximation‖², averaged over rows.

    The factor √n gives U and V gradients of similar size; without it descent would hardly move U.  By Eckart and Young (1936)
    no factorisation is better than the truncated singular value decomposition, with which tests compare.
    """

    def __init__(self, data: Digits, sizes: Mapping[str, int]) -> None:
        self._matrix = data.images - data.images.mean(axis=0)
        self._factors = sizes["factors"]
        self.rows = len(self._matrix)
        self._scale = float(np.sqrt(self.rows))

    def start(self, random: np.random.Generator) -> Vector:
        """Return small random parameters: zero is a saddle point that descent does not leave."""
        columns = self._matrix.shape[1]
        left = random.standard_normal(self.rows * self._factors) / self._scale
        right = random.standard_normal(columns * self._factors) / np.sqrt(columns)
        return 0.5 * np.concatenate([left, right])

    def gradient(self, parameters: Vector, rows: Rows) -> tuple[float, Vector]:
        left, right = self._split(parameters)
        own = left[rows]
        residual = self._scale * (own @ right.T) - self._matrix[rows]
        gradient_left = np.zeros_like(left)
        gradient_left[rows] = self._scale * (residual @ right)
        gradient_right = self._scale * (residual.T @ own)
        loss = 0.5 * float(np.square(residual).sum())
        return loss, np.concatenate([gradient_left.ravel(), gradient_right.ravel()])

    def quality(self, parameters: Vector) -> dict[str, float]:
        left, right = self._split(parameters)
        residual = self._scale * (left @ right.T) - self._matrix
        return {"explained_variance": 1.0 - float(np.square(residual).sum() / np.square(self._matrix).sum())}

    def _split(self, parameters: Vector) -> tuple[Matrix, Matrix]:
        cut = self.rows * self._factors
        return parameters[:cut].reshape(-1, self._factors), parameters[cut:].reshape(-1, self._factors)


PROGRAM = Program(
    name="factorize",
    summary="Factorises the matrix of handwritten digits by gradient descent.",
    build=Factorization,
    batch=1797,
    learning_rate=0.3,
    momentum=0.9,
    l2=0.0,
    sizes={"factors": Size(default=8, most=64, help="columns of the two factors")},
)

if __name__ == "__main__":
    sys.exit(training.main(PROGRAM, stop, presence))
