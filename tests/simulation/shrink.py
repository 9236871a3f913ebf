"""Reduces a failing history: leaves out faults and apps as long as it still fails in the same way.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): halves first, then ever
smaller parts, until not one more can go.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def kind_of(broken: str) -> str:
    """Return the kind of failure, without the names and numbers that differ between histories."""
    said = broken.split(": ", 1)[-1]
    return re.sub(r"[a-z]*\d+(-\w+)?|-?\d[\d.]*", "#", said)[:60]


def shrunk(items: Sequence[int], fails: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """Return a part of `items` that still fails, and of which no single one can be left out."""
    kept, parts = tuple(items), 2
    while kept:
        size = max(1, len(kept) // parts)
        for begin in range(0, len(kept), size):
            without = kept[:begin] + kept[begin + size :]
            if fails(without):
                kept, parts = without, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), parts * 2)
    return kept


class Smaller(msgspec.Struct, frozen=True):
    """A reduced history."""

    faults: tuple[int, ...]
    apps: tuple[int, ...]


def shrink(
    faults: Sequence[int], apps: Sequence[int], broken_with: Callable[[tuple[int, ...], tuple[int, ...]], str]
) -> Smaller:
    """`broken_with(faults, apps)` plays it and returns the failure, "" for none."""
    wanted = kind_of(broken_with(tuple(faults), tuple(apps)))

    def same(some: tuple[int, ...], of: tuple[int, ...]) -> bool:
        said = broken_with(some, of)
        return bool(said) and kind_of(said) == wanted

    less = shrunk(faults, lambda some: same(some, tuple(apps)))
    fewer = shrunk(apps, lambda some: same(less, some))
    return Smaller(shrunk(less, lambda some: same(some, fewer)), fewer)
