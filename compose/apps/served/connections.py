"""A worker's connections to all servers."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import numpy as np

from compose.apps.ring import frames
from compose.apps.worker.failures import AppFailure, PeerLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compose.apps.learning.options import Options
    from compose.apps.served.roles import Role
    from compose.apps.worker.arrays import Vector

_RETRY_S = 0.05
_HELLO_S = 5.0


class Servers:
    """All servers, each with its part of `size` parameters.  Any error breaks the connections; close them then."""

    def __init__(self, role: Role, chosen: Options, size: int, run: str) -> None:
        """Connect.  `run` names settings and state that all must share.  Raises `PeerLost`, `AppFailure`."""
        self._role = role
        self._timeout_s = chosen.peer_timeout
        self._parts = [role.part(server, size) for server in range(len(role.servers))]
        self._connections: list[socket.socket] = []
        deadline = time.monotonic() + chosen.connect_timeout
        try:
            for server in range(len(role.servers)):
                self._connections.append(self._connect(server, run, deadline))
        except AppFailure:
            self.close()
            raise

    def set(self, parameters: Vector, velocity: Vector) -> None:
        """Send the state that training starts from.  Raises `PeerLost`."""
        for server, part in enumerate(self._parts):
            self._send(server, {"state": True}, np.concatenate([parameters[part], velocity[part]]))

    def step(
        self, step: int, losses: Sequence[float], gradients: Sequence[Vector], *, stop: bool
    ) -> tuple[Vector, bool]:
        """Send this worker's shards, and return the mean loss followed by the new parameters, and whether any container was
        asked to stop.  Raises `PeerLost`."""
        for server, part in enumerate(self._parts):
            shards = [
                np.concatenate([[loss], gradient[part]]) for loss, gradient in zip(losses, gradients, strict=True)
            ]
            sent = np.concatenate(shards) if shards else np.empty(0)
            self._send(server, {"step": step, "stop": stop}, sent)
        loss, parts = 0.0, []
        stopping = False
        for server, part in enumerate(self._parts):
            header, answer = self._receive(server, 1 + part.stop - part.start)
            loss = float(answer[0])
            parts.append(answer[1:])
            stopping = stopping or header.get("stop") is True
        return np.concatenate([[loss], *parts]), stopping

    def velocity(self) -> Vector:
        """Return the optimizer's state.  Raises `PeerLost`."""
        parts = []
        for server, part in enumerate(self._parts):
            self._send(server, {"velocity": True}, None)
            parts.append(self._receive(server, part.stop - part.start)[1])
        return np.concatenate(parts)

    def end(self, how: str, value: str) -> None:
        """Send the servers how this worker ends.  Never raises."""
        for connection in self._connections:
            with contextlib.suppress(frames.FrameError):
                frames.send(connection, {how: value[:1000]}, None, 1.0)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _connect(self, server: int, run: str, deadline: float) -> socket.socket:
        host, port = self._role.servers[server]
        reason = "no answer"
        while (left := deadline - time.monotonic()) > 0:
            try:
                connection = socket.create_connection((host, port), timeout=min(left, _HELLO_S))
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                time.sleep(_RETRY_S)
                continue
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                frames.send(connection, {"worker": self._role.number, "run": run}, None, _HELLO_S)
                answer, _ = frames.receive(connection, 0, min(left, self._timeout_s))
            except (frames.FrameError, OSError) as error:
                connection.close()
                reason = str(error)
                time.sleep(_RETRY_S)
                continue
            if answer.get("agreed") is not True:
                connection.close()
                raise AppFailure(f"{self._role.label} and server {server} have other settings, data or checkpoints")
            return connection
        raise PeerLost(f"{self._role.label} could not reach server {server} at {host}:{port}: {reason}")

    def _send(self, server: int, header: dict[str, object], numbers: Vector | None) -> None:
        try:
            frames.send(self._connections[server], header, numbers, self._timeout_s)
        except frames.FrameError as error:
            raise self._lost(server, error) from None

    def _receive(self, server: int, count: int) -> tuple[dict[str, object], Vector]:
        try:
            header, numbers = frames.receive(self._connections[server], count, self._timeout_s)
            if len(numbers) != count:
                raise frames.FrameError("it sent no numbers")
        except frames.FrameError as error:
            raise self._lost(server, error) from None
        return header, numbers

    def _lost(self, server: int, error: frames.FrameError) -> PeerLost:
        host, port = self._role.servers[server]
        return PeerLost(f"{self._role.label} lost server {server} ({host}:{port}): {error}")
