"""The interface between a model and the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from compose.apps.learning.digits import Digits
    from compose.apps.worker.arrays import Rows, Vector


class Model(Protocol):
    """A loss that is a mean over rows of data, and its gradient.  All parameters are one flat vector."""

    @property
    def rows(self) -> int:
        """How many rows there are to train on."""
        ...

    def start(self, random: np.random.Generator) -> Vector:
        """Return the initial parameters."""
        ...

    def gradient(self, parameters: Vector, rows: Rows) -> tuple[float, Vector]:
        """Return loss and gradient, summed (not averaged) over `rows`, so that shards add up to a batch."""
        ...

    def quality(self, parameters: Vector) -> dict[str, float]:
        """Return figures about the trained model for its user."""
        ...


@dataclass(frozen=True, slots=True)
class Size:
    """An integer option of one program, such as the width of its hidden layer."""

    default: int
    most: int
    help: str


@dataclass(frozen=True, slots=True)
class Program:
    """One sample app: a model and the settings that suit it."""

    name: str
    summary: str
    build: Callable[[Digits, Mapping[str, int]], Model]
    """Builds the model from the data and the values of `sizes`."""
    batch: int
    learning_rate: float
    momentum: float
    l2: float
    sizes: Mapping[str, Size] = field(default_factory=dict)
