"""Which samples a step uses: fixed by the data's size, the batch, the seed and the step's number, never by the members.

The samples 0..n-1 are divided into chunks, the unit that moves between members (Chicle, section 3).  In each epoch, each chunk
has its own order, and each step takes the next few samples of every chunk.  So a member's share of a step is given by the
chunks it owns, while the batch as a whole stays the same through every resize.

Position p of an epoch belongs to chunk p mod c, and step s takes the positions [s·b, (s+1)·b): b samples exactly, except in
the last step of an epoch, and each sample exactly once.  If fewer samples remain for that step than one member's least share,
the step before takes them too.  With `drop_last` nobody uses the samples that fill no batch, which differ by epoch.
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
    least: int = 0
    """The fewest samples of a member that takes part in a step; 0 if shares may be empty."""
    drop_last: bool = False

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
        if self.drop_last and self.samples < self.batch:
            text = f"{self.samples} samples fill no batch of {self.batch}, so drop_last leaves out all; use a smaller batch"
            raise ContractError(text, code="elastic.contract.drop_last")
        if not 0 <= self.least <= min(self.batch, self.samples):
            text = (
                f"a share has at least {self.least} samples, and there are {min(self.batch, self.samples)} in a batch; "
                "use a larger batch, or a smaller least"
            )
            raise ContractError(text, code="elastic.contract.least")

    @property
    def steps_per_epoch(self) -> int:
        full, rest = divmod(self.samples, self.batch)
        return full + bool(rest and not self.drop_last and (rest >= self.least or not full))

    def _positions(self, step: int) -> range:
        """Return the positions of its epoch that a step takes."""
        at, per_epoch = step % self.steps_per_epoch, self.steps_per_epoch
        last = (at + 1) * self.batch
        return range(at * self.batch, self.samples if at == per_epoch - 1 and not self.drop_last else last)

    def size(self, step: int) -> int:
        """Return how many samples all members together use in a step."""
        return len(self._positions(step))

    def sizes(self, step: int) -> list[int]:
        """Return how many of them belong to each chunk."""
        positions = self._positions(step)
        return [
            self._before(chunk, positions.stop) - self._before(chunk, positions.start) for chunk in range(self.count)
        ]

    def _before(self, chunk: int, position: int) -> int:
        """Return how many positions before this one belong to the chunk: those p with p mod count == chunk."""
        return max(0, -(-(position - chunk) // self.count))

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
        positions = self._positions(step)
        return self._between(step, chunk, positions.start, positions.stop)

    def left_out(self, step: int, chunk: int) -> npt.NDArray[np.int64]:
        """Return the samples of a chunk that the epoch leaves out, if it ends with this step."""
        first = self._positions(step).stop
        return self._between(step, chunk, first, self.samples if self.ends_epoch(step) else first)

    def _between(self, step: int, chunk: int, first: int, last: int) -> npt.NDArray[np.int64]:
        # The offsets of these positions into the chunk's order.
        low, high = (self._before(chunk, position) for position in (first, last))
        return self._order(self.epoch_of(step), chunk)[low:high]

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
