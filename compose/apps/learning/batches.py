"""Which samples a step uses, and which worker computes which of its shards.

Both are functions of the settings and the step alone.  A worker's part depends on its rank; the joint result never depends on
the number of workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from compose.apps.worker.arrays import Rows

SHARDS = 24
"""Shards of every step's batch.  24 divides evenly among 1, 2, 3, 4, 6, 8 and 12 workers; beyond 24, some are idle."""


def shards_of(rank: int, world_size: int) -> range:
    """Return the shards of one worker: contiguous, in rank order, and as even as possible."""
    return range(SHARDS * rank // world_size, SHARDS * (rank + 1) // world_size)


class Batches:
    """Goes through the data in epochs, each in its own order, given by seed and epoch."""

    def __init__(self, rows: int, size: int, seed: int) -> None:
        """`size` samples in each step, at most `rows`."""
        assert 0 < size <= rows
        self._rows = rows
        self._size = size
        self._seed = seed
        self._orders: dict[int, Rows] = {}

    def shards(self, step: int) -> list[Rows]:
        """Return the rows of each shard of a step; steps count from 1."""
        return self.after((step - 1) * self._size, self._size)

    def after(self, seen: int, size: int) -> list[Rows]:
        """Return the rows of each shard of the next `size` samples, at most as many as there are rows, once so many were
        seen."""
        epoch, offset = divmod(seen, self._rows)
        rows = self._order(epoch)[offset : offset + size]
        if len(rows) < size:
            rows = np.concatenate([rows, self._order(epoch + 1)[: size - len(rows)]])
        return [rows[len(rows) * k // SHARDS : len(rows) * (k + 1) // SHARDS] for k in range(SHARDS)]

    def _order(self, epoch: int) -> Rows:
        if epoch not in self._orders:
            self._orders.pop(epoch - 2, None)  # a step spans two epochs at most
            random = np.random.default_rng(
                [self._seed, epoch + 1]
            )  # without 1 it would be the model's initial generator
            self._orders[epoch] = random.permutation(self._rows).astype(np.int64)
        return self._orders[epoch]
