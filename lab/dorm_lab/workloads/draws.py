"""Randomness from a seed: drawn the same way on every machine and by every version of Python.

Only `random()` of `random.Random` promises the same sequence in all versions, so everything here is made from it, each draw
from exactly one number.
"""

from __future__ import annotations

import math
import random
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from events.quantities import duration, short
from replay import ReplayError

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_NORMAL = NormalDist()


class Draws:
    """One sequence.  Sequences with different `of` are independent, so more draws from one leave the others unchanged."""

    def __init__(self, seed: int, of: str) -> None:
        self._random = random.Random(f"{seed}/{of}").random

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._random()

    def exponential(self, mean: float) -> float:
        return -mean * math.log1p(-self._random())

    def lognormal(self, mean: float, sigma: float) -> float:
        """Draw with this mean (not median); `sigma` is the standard deviation of the logarithm."""
        # The middle of a cell of 2^-53, since 0 itself has no quantile.
        quantile = _NORMAL.inv_cdf(self._random() * (1 - 2**-53) + 2**-54)
        return mean * math.exp(sigma * quantile - sigma * sigma / 2)

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """Return the items in random order."""
        keyed = [(self._random(), index, item) for index, item in enumerate(items)]
        return [item for _, _, item in sorted(keyed, key=lambda entry: entry[:2])]


class DistributionError(ReplayError, ValueError):
    """The text is not a distribution; the message is one line that says what to write."""

    code = "distribution.malformed"


_OUT_OF_RANGE = "distribution.out_of_range"


class Distribution(NamedTuple):
    """A distribution; its values are never negative."""

    kind: str
    values: tuple[float, ...]

    def draw(self, draws: Draws) -> float:
        if self.kind == "uniform":
            return draws.uniform(*self.values)
        if self.kind == "exponential":
            return draws.exponential(*self.values)
        if self.kind == "lognormal":
            return draws.lognormal(*self.values)
        return self.values[min(int(draws.uniform(0, len(self.values))), len(self.values) - 1)]


_VALUES = {"uniform": 2, "exponential": 1, "lognormal": 2}
_LARGEST = 1e12


def distribution(text: str, *, durations: bool = False) -> Distribution:
    """Parse `5`, `4:8:16` (one of them), `uniform:1:8`, `exponential:20m` (mean), `lognormal:3h:0.5` (mean, sigma of the
    logarithm).

    With `durations`, values may have a unit and are seconds.  Raises DistributionError."""
    kind, *parts = text.split(":")
    if kind not in _VALUES:
        kind, parts = "choice", [kind, *parts]
    elif len(parts) != _VALUES[kind]:
        raise DistributionError(f"{kind} takes {_VALUES[kind]} value{'s' * (_VALUES[kind] > 1)}, got {short(text)}")
    plain = {1} if kind == "lognormal" else set()
    values = tuple(_value(part, text, durations and index not in plain) for index, part in enumerate(parts))
    if kind == "uniform" and values[0] > values[1]:
        raise DistributionError(f"{short(text)}: the first value is more than the second", code=_OUT_OF_RANGE)
    if kind == "lognormal" and values[1] > _WIDEST_SIGMA:
        raise DistributionError(f"{short(text)}: sigma is more than {_WIDEST_SIGMA:g}", code=_OUT_OF_RANGE)
    return Distribution(kind, values)


_WIDEST_SIGMA = 5.0
"""One app in a thousand is then five million times the median; a wider distribution simulates nothing but chance."""


def _value(part: str, text: str, as_duration: bool) -> float:
    try:
        value = duration(part) if as_duration else float(part)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LARGEST:
        what = "a duration such as 20m or 3h" if as_duration else "a number of at least 0"
        raise DistributionError(
            f"expected {what}, exponential:MEAN, uniform:LOW:HIGH or lognormal:MEAN:SIGMA, got {short(text)}"
        )
    return value
