"""Chance, from a seed: drawn the same way on every machine and by every version of Python.

Of `random.Random` only `random()` promises the same sequence for ever, so everything here is made from it, each draw from
exactly one number.
"""

from __future__ import annotations

import math
import random
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_NORMAL = NormalDist()


class Draws:
    """One sequence.  Different `of` give independent ones, so that another number of draws here changes nothing there."""

    def __init__(self, seed: int, of: str) -> None:
        self._random = random.Random(f"{seed}/{of}").random

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._random()

    def exponential(self, mean: float) -> float:
        return -mean * math.log1p(-self._random())

    def lognormal(self, mean: float, sigma: float) -> float:
        """With this mean (not median); `sigma` is the standard deviation of the logarithm."""
        # The middle of a cell of 2^-53, since 0 itself has no quantile.
        quantile = _NORMAL.inv_cdf(self._random() * (1 - 2**-53) + 2**-54)
        return mean * math.exp(sigma * quantile - sigma * sigma / 2)

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """In an order of chance."""
        keyed = [(self._random(), index, item) for index, item in enumerate(items)]
        return [item for _, _, item in sorted(keyed, key=lambda entry: entry[:2])]
