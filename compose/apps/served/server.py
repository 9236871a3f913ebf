"""A parameter server: it holds a part of the parameters and of the optimizer's state, and updates them once a step.

A step needs a message from every worker, with the gradients of its shards.  They are added up shard by shard, in the shards'
own order, which does not depend on how many workers there are.  Then the server updates its part and answers all workers with
the new parameters.  A request to stop, to any worker or server, is in the answers of the same step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from compose.apps.learning.batches import shards_of
from compose.apps.ring import frames
from compose.apps.ring.rendezvous import listen
from compose.apps.worker.failures import AppFailure, PeerLost

if TYPE_CHECKING:
    import socket

    from compose.apps.learning.options import Options
    from compose.apps.served.roles import Role
    from compose.apps.worker.arrays import Vector
    from compose.apps.worker.contract import Place
    from compose.apps.worker.process import Stop

_HELLO_S = 5.0


@dataclass(slots=True)
class Server:
    """One server, for `size` of the parameters."""

    role: Role
    chosen: Options
    size: int
    stop: Stop
    parameters: Vector = field(default_factory=lambda: np.empty(0))
    velocity: Vector = field(default_factory=lambda: np.empty(0))

    def serve(self, place: Place, run: str) -> bool:
        """Serve until the workers have ended; return whether they finished, not just stopped.

        `run` names settings and state that all must share.  Raises `PeerLost`, `PortTaken`, `AppFailure`.
        """
        listener = listen(place)
        workers: dict[int, socket.socket] = {}
        try:
            self._welcome(listener, workers, run)
            self.stop.begin_training()
            self._take_state(workers[0])
            while (finished := self._step(workers)) is None:
                pass
        finally:
            listener.close()
            for connection in workers.values():
                connection.close()
        return finished

    def _welcome(self, listener: socket.socket, workers: dict[int, socket.socket], run: str) -> None:
        """Accept every worker once; others are turned away."""
        deadline = time.monotonic() + self.chosen.connect_timeout
        while len(workers) < self.role.workers:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                caller, _ = listener.accept()
            except TimeoutError:
                absent = sorted({*range(self.role.workers)} - workers.keys())
                raise PeerLost(
                    f"{self.role.label} waited {self.chosen.connect_timeout:g} s for workers {absent}"
                ) from None
            except OSError:
                continue  # it hung up before it was accepted
            try:
                hello, _ = frames.receive(caller, 0, _HELLO_S)
                number = hello.get("worker")
                expected = isinstance(number, int) and 0 <= number < self.role.workers and number not in workers
                agreed = hello.get("run") == run
                if expected:
                    frames.send(caller, {"agreed": agreed}, None, _HELLO_S)
            except frames.FrameError:
                caller.close()
                continue
            if not expected:
                caller.close()
                continue
            assert isinstance(number, int)
            workers[number] = caller
            if not agreed:
                raise AppFailure(f"{self.role.label} and worker {number} have other settings, data or checkpoints")

    def _take_state(self, first: socket.socket) -> None:
        """Receive the state that training starts from, from worker 0: this server's part of the parameters, then the
        velocities."""
        try:
            _, state = frames.receive(first, 2 * self.size, self.chosen.peer_timeout)
        except frames.FrameError as error:
            raise self._lost(0, error) from None
        self.parameters, self.velocity = state[: self.size].copy(), state[self.size :].copy()

    def _step(self, workers: dict[int, socket.socket]) -> bool | None:
        """Run one step; once the workers have ended, return whether they finished, else None."""
        total = np.full(1 + self.size, -0.0)  # adding to -0.0 changes no bit
        stopping, steps = self.stop.asked, set()
        for number in range(self.role.workers):
            header, parts = self._receive(workers[number], number)
            if "ended" in header:
                return header["ended"] == "finished"
            for part in parts.reshape(-1, 1 + self.size):
                total += part
            stopping = stopping or header.get("stop") is True
            steps.add(header.get("step"))
        if len(steps) > 1:
            raise PeerLost(f"{self.role.label}: its workers are at different steps, {sorted(map(str, steps))}")
        mean = total / self.chosen.batch
        gradient = mean[1:] + self.chosen.l2 * self.parameters
        self.velocity = self.chosen.momentum * self.velocity - self.chosen.learning_rate * gradient
        self.parameters = self.parameters + self.velocity
        answer = np.concatenate([mean[:1], self.parameters])
        for number in range(self.role.workers):
            self._send(workers[number], number, {"stop": stopping}, answer)
        return None

    def _receive(self, worker: socket.socket, number: int) -> tuple[dict[str, object], Vector]:
        """Return a worker's part of the step, or how it ended.  A request for the velocities is answered in between."""
        count = len(shards_of(number, self.role.workers)) * (1 + self.size)
        while True:
            try:
                header, parts = frames.receive(worker, count, self.chosen.peer_timeout)
                if "gave_up" in header:
                    raise PeerLost(str(header["gave_up"]))
                if "ended" not in header and "velocity" not in header and len(parts) != count:
                    raise frames.FrameError("it sent no gradients")
            except frames.FrameError as error:
                raise self._lost(number, error) from None
            if "velocity" not in header:
                return header, parts
            self._send(worker, number, {}, self.velocity)

    def _send(self, worker: socket.socket, number: int, header: dict[str, object], numbers: Vector) -> None:
        try:
            frames.send(worker, header, numbers, self.chosen.peer_timeout)
        except frames.FrameError as error:
            raise self._lost(number, error) from None

    def _lost(self, number: int, error: frames.FrameError) -> PeerLost:
        return PeerLost(f"{self.role.label} lost worker {number}: {error}")
