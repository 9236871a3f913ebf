"""Classification by softmax: loss, its gradient, accuracy (Bishop, Pattern Recognition and Machine Learning, §4.3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from compose.apps.worker.arrays import Labels, Matrix


def cross_entropy(scores: Matrix, labels: Labels) -> tuple[float, Matrix]:
    """Return -Σ log softmax(scores)[label] over the rows, and its gradient by the scores, which is probabilities -
    one-hot."""
    shifted = scores - scores.max(axis=1, keepdims=True)  # the same probabilities, and no overflow
    weights = np.exp(shifted)
    sums = weights.sum(axis=1, keepdims=True)
    each = np.arange(len(labels))
    loss = float((np.log(sums[:, 0]) - shifted[each, labels]).sum())
    gradient: Matrix = weights / sums
    gradient[each, labels] -= 1.0
    return loss, gradient


def accuracy(scores: Matrix, labels: Labels) -> float:
    """Return the fraction of rows whose highest score is their label's."""
    return float((scores.argmax(axis=1) == labels).mean())
