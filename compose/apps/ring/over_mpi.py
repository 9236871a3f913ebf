"""The ring's sum over MPI: the same additions in the same order, with MPI's messages.

MPI ends the whole job when a rank fails, so no error has to be passed on, and there is no time limit here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from compose.apps.worker import contract
from compose.apps.worker.failures import AppFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from compose.apps.worker.arrays import Vector
    from compose.apps.worker.contract import Place


def read_place(environment: Mapping[str, str]) -> Place:
    """Return the rank's place in MPI's world; a container may hold several ranks.  Raises `BadSetting`."""
    world = MPI.COMM_WORLD
    return replace(contract.read_place(environment), rank=world.rank, world_size=world.size, peers=())


def join(place: Place, run: str, *, connect_timeout_s: float, peer_timeout_s: float) -> Chain:
    """Make sure that all ranks have the same settings and state.  Raises `AppFailure`."""
    others = MPI.COMM_WORLD.allgather(run)
    if any(other != run for other in others):
        raise AppFailure(
            f"{place.label} and rank {[o == run for o in others].index(False)} have other settings or data"
        )
    return Chain(place)


class Chain:
    """This rank's place in the chain from the first rank to the last."""

    def __init__(self, place: Place) -> None:
        self._world = MPI.COMM_WORLD
        self._rank, self._last = place.rank, place.world_size - 1

    def sum(self, step: int, parts: Sequence[Vector], size: int, stop: Callable[[], bool]) -> tuple[Vector, bool]:
        """Return the sum of all ranks' parts, each of `size` numbers, and whether any rank was asked to stop."""
        message = np.full(1 + size, -0.0)  # adding to -0.0 changes no bit
        if self._rank > 0:
            self._world.Recv(message, source=self._rank - 1)
        total = message[1:]
        for part in parts:
            total += part
        message[0] = float(stop() or message[0] == 1.0)
        if self._rank < self._last:
            self._world.Send(message, dest=self._rank + 1)
        self._world.Bcast(message, root=self._last)
        return total.copy(), bool(message[0] == 1.0)

    def give_up(self, reason: str) -> None:
        """End the whole job; the reason is in this rank's output."""
        print(f"rank {self._rank} gives up: {reason}", flush=True)
        self._world.Abort(1)

    def close(self) -> None:
        """Leave together: a rank that ends early with an exit code would end the others while one still saves."""
        self._world.Barrier()
