"""The ledger of samples: which samples an epoch has used, as a sum that does not depend on the order or on who used them.

Each member adds up a hash of the samples it was given; a step's sums count only once the step is completed.  At the end of an
epoch the digest equals that of 0..n-1, each once, if and only if no sample was lost and none used twice (up to a chance of
about 2^-256 for accidents; a job that lies about its samples can compute the expected digest).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dorm.elastic.chunks import mixed

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

__all__ = ["EMPTY", "Entry", "entry_of", "expected"]

_LANES = 4
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """How many samples were used, and the sum of their hashes in four lanes of 64 bits."""

    samples: int = 0
    lanes: tuple[int, ...] = (0,) * _LANES

    def __add__(self, other: Entry) -> Entry:
        lanes = tuple((a + b) % 2**64 for a, b in zip(self.lanes, other.lanes))
        return Entry(self.samples + other.samples, lanes)

    @property
    def digest(self) -> str:
        """64 hex digits."""
        return "".join(f"{lane:016x}" for lane in self.lanes)


EMPTY = Entry()


def entry_of(samples: Iterable[npt.NDArray[np.int64]]) -> Entry:
    """Return the entry of these samples."""
    total = EMPTY
    for block in samples:
        if not len(block):
            continue
        values = block.astype(np.uint64)
        lanes = tuple(int(np.sum(mixed(values, 0xD0 + lane), dtype=np.uint64)) for lane in range(_LANES))
        total += Entry(len(block), lanes)
    return total


def expected(samples: int) -> Entry:
    """Return the entry of an epoch that used each of 0..samples-1 exactly once."""
    return entry_of(np.arange(low, min(low + _BLOCK, samples), dtype=np.int64) for low in range(0, samples, _BLOCK))
