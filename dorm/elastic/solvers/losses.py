"""Losses of generalized linear models, as CoCoA needs them.

The problem is P(w) = 1/n Σ loss(x_i·w, y_i) + λ/2 |w|², its dual D(α) = -1/n Σ conjugate(-α_i) - λ/2 |w(α)|² with w(α) =
1/(λn) Σ α_i x_i (Shalev-Shwartz and Zhang, *Stochastic Dual Coordinate Ascent Methods for Regularized Loss Minimization*,
JMLR 2013, section 1).  `step` maximizes the dual over one coordinate, where moving α_i by δ changes x_i·w by q·δ (there
section 6).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Vector = npt.NDArray[np.float64]

__all__ = ["LOSSES", "Loss"]

_NEWTON = 20
_TOLERANCE = 1e-12


class Loss(NamedTuple):
    """One loss; labels are -1 and 1, except for ridge regression."""

    value: Callable[[Vector, Vector], float]
    """The sum of the losses of predictions x·w and labels."""
    conjugate: Callable[[Vector, Vector], float]
    """The sum of conjugate(-α), by α and labels."""
    step: Callable[[float, float, float, float], float]
    """The new α_i, by its present value, the prediction x_i·w, the label and q."""


def _log_sum(predictions: Vector, labels: Vector) -> float:
    return float(np.sum(np.logaddexp(0.0, -labels * predictions)))


def _entropy(alpha: Vector, labels: Vector) -> float:
    a = np.clip(alpha * labels, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(a > 0, a * np.log(a), 0.0) + np.where(a < 1, (1 - a) * np.log(1 - a), 0.0)
    return float(np.sum(terms))


def _logistic_step(alpha: float, prediction: float, label: float, q: float) -> float:
    """Solve t + y·x·w + q (σ(t) - a) = 0 for t by Newton's method; the new a is σ(t).  The left side grows with t, at least as
    fast as t itself, so each iteration stays between the bounds that the signs give."""
    a, margin = alpha * label, label * prediction
    low, high = -margin - q * (1 - a), -margin + q * a
    t = min(max(-margin, low), high)
    for _ in range(_NEWTON):
        sigma = 0.5 * (1.0 + math.tanh(0.5 * t))
        value = t + margin + q * (sigma - a)
        if abs(value) < _TOLERANCE:
            break
        low, high = (t, high) if value < 0 else (low, t)
        t -= value / (1.0 + q * sigma * (1.0 - sigma))
        if not low < t < high:
            t = 0.5 * (low + high)
    return label * 0.5 * (1.0 + math.tanh(0.5 * t))


def _hinge(predictions: Vector, labels: Vector) -> float:
    return float(np.sum(np.maximum(0.0, 1.0 - labels * predictions)))


def _hinge_conjugate(alpha: Vector, labels: Vector) -> float:
    return float(-np.sum(alpha * labels))


def _hinge_step(alpha: float, prediction: float, label: float, q: float) -> float:
    if q <= 0.0:
        return label
    return label * min(1.0, max(0.0, alpha * label + (1.0 - label * prediction) / q))


def _squared(predictions: Vector, labels: Vector) -> float:
    return 0.5 * float(np.sum((predictions - labels) ** 2))


def _squared_conjugate(alpha: Vector, labels: Vector) -> float:
    return float(np.sum(0.5 * alpha**2 - alpha * labels))


def _squared_step(alpha: float, prediction: float, label: float, q: float) -> float:
    return alpha + (label - prediction - alpha) / (1.0 + q)


LOSSES: dict[str, Loss] = {
    "logistic": Loss(_log_sum, _entropy, _logistic_step),
    "hinge": Loss(_hinge, _hinge_conjugate, _hinge_step),
    "squared": Loss(_squared, _squared_conjugate, _squared_step),
}
"""Losses by name: logistic regression, support vector machine, ridge regression."""
