"""Which samples a step uses: fixed by the data's size, the batch, the seed and the step's number, never by the members.

The samples 0..n-1 are divided into chunks, the unit that moves between members (Chicle, section 3).  In each epoch, each chunk
has its own order, and each step takes the next few samples of every chunk.  So a member's share of a step is given by the
chunks it owns, while the batch as a whole stays the same through every resize.

Position p of an epoch belongs to chunk p mod c, and step s takes the positions [s·b, (s+1)·b): b samples exactly, except in
the last step of an epoch, and each sample exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dorm.elastic.errors import ContractError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["DEFAULT_CHUNKS", "Chunks", "mixed"]

DEFAULT_CHUNKS = 32
"""The default number of chunks: the maximum number of members; eight members have four each, so that they can be balanced."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Chunks:
    """How `samples` samples are divided into `count` chunks and visited in batches of `batch`."""

    samples: int
    batch: int
    count: int = DEFAULT_CHUNKS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ContractError("there are no samples to train on", code="elastic.contract.no_samples")
        if not self.batch >= 1:
            raise ContractError(f"batch is {self.batch}; it must be at least 1", code="elastic.contract.batch")
        if not 1 <= self.count <= self.samples:
            text = (
                f"{self.samples} samples cannot be divided into {self.count} chunks; chunks must be 1 to {self.samples}"
            )
            raise ContractError(text, code="elastic.contract.chunks")

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.batch)

    def samples_of(self, chunk: int) -> range:
        """Return the samples of a chunk: consecutive, so that a chunk can be read at once.  Sizes differ by one at most."""
        size, longer = divmod(self.samples, self.count)
        start = chunk * size + min(chunk, longer)
        return range(start, start + size + (chunk < longer))

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def ends_epoch(self, step: int) -> bool:
        return (step + 1) % self.steps_per_epoch == 0

    def part(self, step: int, chunk: int) -> npt.NDArray[np.int64]:
        """Return the samples that a step (counted over all epochs, from 0) takes from a chunk: shape (k,), k >= 0."""
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        first = step_of_epoch * self.batch
        last = min(first + self.batch, self.samples)
        # Positions p with p mod count == chunk, as offsets p div count into the chunk's order.
        low, high = (max(0, -(-(position - chunk) // self.count)) for position in (first, last))
        return self._order(epoch, chunk)[low:high]

    def _order(self, epoch: int, chunk: int) -> npt.NDArray[np.int64]:
        """Return the chunk's samples in this epoch's order: sorted by a hash, so it is the same with any version of NumPy."""
        known = _orders.get(self)
        if known is None or known[0] != epoch:
            known = _orders[self] = (epoch, {})
            while len(_orders) > 8:
                _orders.pop(next(iter(_orders)))
        order = known[1].get(chunk)
        if order is None:
            samples = np.arange(self.samples_of(chunk).start, self.samples_of(chunk).stop, dtype=np.int64)
            keys = mixed(samples.astype(np.uint64), self.seed * 0x10001 + epoch)
            order = known[1][chunk] = samples[np.argsort(keys, kind="stable")]
        return order


_orders: dict[Chunks, tuple[int, dict[int, npt.NDArray[np.int64]]]] = {}
"""The orders of the current epoch, by chunk: each is asked for once a step."""


def mixed(values: npt.NDArray[np.uint64], salt: int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each value (the finalizer of SplitMix64: Steele, Lea, Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        hashed = values * np.uint64(_GOLDEN) + np.uint64((salt * 0xD1342543DE82EF95 + _GOLDEN) & _MASK)
        hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return hashed ^ (hashed >> np.uint64(31))
