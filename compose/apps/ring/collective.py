"""Sum vectors over all workers, in an order that does not depend on their number.

The workers form a ring.  Rank 0 adds up its shards and sends the sum to rank 1, which adds its own shards to it one by one
and forwards it; the last rank holds the total and sends it around.  Since ranks hold contiguous shards in rank order, this is
one long addition from the first shard to the last, so floating-point rounding is the same for any number of workers.  (A tree,
or the usual ring that sums chunks in parallel, would be faster for large vectors but round differently.)

A request to stop travels with the sum: its value when the last rank completes the total holds for all.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from compose.apps.ring import frames, rendezvous
from compose.apps.worker.failures import PeerLost

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from compose.apps.worker.arrays import Vector
    from compose.apps.worker.contract import Place


class Ring:
    """This worker's place in the ring.  Any error breaks it; close it then."""

    def __init__(
        self, place: Place, before: socket.socket | None, after: socket.socket | None, timeout_s: float
    ) -> None:
        self._place = place
        self._before = before
        self._after = after
        self._timeout_s = timeout_s

    def sum(self, step: int, parts: Sequence[Vector], size: int, stop: Callable[[], bool]) -> tuple[Vector, bool]:
        """Return the sum of all workers' parts, each of `size` numbers, and whether any worker was asked to stop.

        `stop` is called as late as possible.  Raises `PeerLost`.
        """
        last = self._place.world_size - 1
        if self._place.rank == 0:
            total, stopping = np.full(size, -0.0), False  # adding to -0.0 changes no bit; 0.0 would turn -0.0 into 0.0
        else:
            total, stopping = self._receive(step, size)
        for part in parts:
            total += part
        stopping = stop() or stopping
        if last > 0:
            self._send(step, total, stopping)
            if self._place.rank != last:
                total, stopping = self._receive(step, size)
                if self._place.rank != last - 1:
                    self._send(step, total, stopping)
        return total, stopping

    def give_up(self, reason: str) -> None:
        """Send the next worker the reason why this one leaves, so that every log names the first cause.  Never raises."""
        if self._after is not None:
            with contextlib.suppress(frames.FrameError):
                frames.send(self._after, {"gave_up": reason[:1000]}, None, 1.0)

    def close(self) -> None:
        for connection in (self._before, self._after):
            if connection is not None:
                connection.close()

    def _send(self, step: int, total: Vector, stopping: bool) -> None:
        assert self._after is not None
        try:
            frames.send(self._after, {"step": step, "stop": stopping}, total, self._timeout_s)
        except frames.FrameError as error:
            raise self._lost(1, error) from None

    def _receive(self, step: int, size: int) -> tuple[Vector, bool]:
        assert self._before is not None
        try:
            header, total = frames.receive(self._before, size, self._timeout_s)
            if "gave_up" in header:
                raise PeerLost(str(header["gave_up"]))
            if header.get("step") != step or len(total) != size:
                raise frames.FrameError(f"it is at step {header.get('step')}, this worker at step {step}")
        except frames.FrameError as error:
            raise self._lost(-1, error) from None
        return total, header.get("stop") is True

    def _lost(self, distance: int, error: frames.FrameError) -> PeerLost:
        place = self._place
        rank = (place.rank + distance) % place.world_size
        host, port = place.peers[rank]
        return PeerLost(f"{place.label} lost rank {rank} ({host}:{port}): {error}")


def join(place: Place, run: str, *, connect_timeout_s: float, peer_timeout_s: float) -> Ring:
    """Form the ring with all other workers.  `run` names settings and state that all must share.

    Raises what `rendezvous.meet` raises.
    """
    if place.world_size == 1:
        return Ring(place, None, None, peer_timeout_s)
    before, after = rendezvous.meet(place, run, connect_timeout_s)
    return Ring(place, before, after, peer_timeout_s)
