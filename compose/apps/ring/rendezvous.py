"""How the workers of one generation find each other, in whatever order they start.

Every rank listens on its own port of DORM_PEERS and connects to the next rank's (the last one to rank 0), again and again
until the next one answers or the time is up.  A connection opens with a hello that identifies the worker and its training.
Strangers and workers of another generation are turned away, and the wait continues; but a worker of this generation with
another training is an error at both ends.  The network is trusted: a hello guards against mistakes, not against malice.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from compose.apps.ring import frames
from compose.apps.worker.failures import AppFailure, PeerLost, PortTaken

if TYPE_CHECKING:
    from compose.apps.worker.contract import Place

_RETRY_S = 0.01
_LONGEST_RETRY_S = 0.05
_HELLO_S = 2.0
_MOST_CALLERS = 64


def meet(place: Place, run: str, timeout_s: float) -> tuple[socket.socket, socket.socket]:
    """Return connections from the rank before and to the rank after.  `run` names settings and state that all must share.

    Raises `PortTaken`, `PeerLost` if the others have not come within `timeout_s`, `AppFailure` if they differ.
    """
    meeting = _Meeting(place, run, timeout_s)
    try:
        return meeting.run()
    except AppFailure:
        meeting.close_all()
        raise


class _Meeting:
    """Connects to the rank after and accepts callers at the same time, so that no stranger delays the right one."""

    def __init__(self, place: Place, run: str, timeout_s: float) -> None:
        self._place = place
        self._hello = {"app": place.app, "generation": place.generation, "world_size": place.world_size, "run": run}
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._listener = listen(place)
        self._callers: dict[socket.socket, float] = {}
        """Accepted callers not heard yet, each with the deadline of its hello."""
        self._before: socket.socket | None = None
        self._after: socket.socket | None = None
        self._welcome = False
        self._knock_at = 0.0
        self._retry_s = _RETRY_S
        self._reason = "no answer"

    def run(self) -> tuple[socket.socket, socket.socket]:
        while self._before is None or self._after is None or not self._welcome:
            now = time.monotonic()
            if now >= self._deadline:
                raise self._nobody_came()
            if self._after is None and now >= self._knock_at:
                self._knock()
            until = min([self._deadline, *self._callers.values()] + ([] if self._after else [self._knock_at]))
            sources = [self._listener, *self._callers]
            if self._after is not None and not self._welcome:
                sources.append(self._after)
            readable, _, _ = select.select(sources, [], [], max(0.0, until - time.monotonic()))
            for source in readable:
                if source is self._listener:
                    self._accept()
                elif source is self._after:
                    self._hear_answer(source)
                else:
                    self._hear_caller(source)
            self._drop_silent_callers()
        for caller in self._callers:
            caller.close()
        self._listener.close()
        return self._before, self._after

    def close_all(self) -> None:
        for connection in (self._listener, self._before, self._after, *self._callers):
            if connection is not None:
                connection.close()

    def _knock(self) -> None:
        """Connect to the rank after and send a hello.  It may not be listening yet, or another process may."""
        address = self._place.peers[self._rank(+1)]
        try:
            connection = socket.create_connection(address, timeout=min(_HELLO_S, self._deadline - time.monotonic()))
        except OSError as error:
            self._knock_later((error.strerror or str(error)).lower())
            return
        try:
            # A connection to an unused port in the kernel's own range can end up connected to itself.
            if connection.getsockname() == connection.getpeername():
                raise frames.FrameError("no answer")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            frames.send(connection, {**self._hello, "rank": self._place.rank}, None, _HELLO_S)
            self._after = connection
        except (frames.FrameError, OSError) as error:
            connection.close()
            self._knock_later(str(error))

    def _knock_later(self, reason: str) -> None:
        self._reason = reason
        self._knock_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)

    def _hear_answer(self, after: socket.socket) -> None:
        try:
            answer, _ = frames.receive(after, 0, _HELLO_S)
        except frames.FrameError as error:
            after.close()
            self._after = None
            self._knock_later(str(error))
            return
        if answer.get("agreed") is not True:
            raise self._disagreement(self._rank(+1))
        self._welcome = True

    def _accept(self) -> None:
        try:
            self._listener.settimeout(0)
            caller, _ = self._listener.accept()
        except OSError:  # the caller hung up before it was accepted
            return
        if len(self._callers) >= _MOST_CALLERS:
            caller.close()
        else:
            self._callers[caller] = time.monotonic() + _HELLO_S

    def _hear_caller(self, caller: socket.socket) -> None:
        """Keep the connection if it is from the rank before; answer only a rank of this generation."""
        del self._callers[caller]
        try:
            heard, _ = frames.receive(caller, 0, _HELLO_S)
            own = {**self._hello, "rank": self._rank(-1)}
            if all(heard.get(key) == own[key] for key in own if key != "run"):
                agreed = heard.get("run") == own["run"]
                frames.send(caller, {"agreed": agreed}, None, _HELLO_S)
                if not agreed:
                    caller.close()
                    raise self._disagreement(self._rank(-1))
                if self._before is not None:
                    self._before.close()  # it lost that connection, or it would not have called again
                caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._before = caller
                return
        except (frames.FrameError, OSError):
            pass
        caller.close()

    def _drop_silent_callers(self) -> None:
        now = time.monotonic()
        for caller in [caller for caller, until in self._callers.items() if until <= now]:
            del self._callers[caller]
            caller.close()

    def _rank(self, distance: int) -> int:
        return (self._place.rank + distance) % self._place.world_size

    def _nobody_came(self) -> PeerLost:
        label, waited = self._place.label, f"{self._timeout_s:g} s"
        if self._before is not None or self._after is None:
            host, port = self._place.peers[self._rank(+1)]
            reason = "it does not answer" if self._after is not None else self._reason
            return PeerLost(f"{label} could not reach rank {self._rank(+1)} at {host}:{port} within {waited}: {reason}")
        return PeerLost(f"{label} waited {waited} for rank {self._rank(-1)}, which did not come")

    def _disagreement(self, rank: int) -> AppFailure:
        return AppFailure(f"{self._place.label} and rank {rank} have other settings, data or checkpoints")


def listen(place: Place) -> socket.socket:
    """Listen at this worker's entry of DORM_PEERS.  Raises `PortTaken`, `AppFailure`."""
    host, port = place.peers[place.rank]
    try:
        # Only on the announced address.  Behind address translation that is not this machine's own: then on all.
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _bind(family, address)
    except socket.gaierror:
        pass
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise _cannot_listen(place, error) from None
    try:
        return _bind(socket.AF_INET6 if ":" in host else socket.AF_INET, ("", port))
    except OSError as error:
        raise _cannot_listen(place, error) from None


def _bind(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(16)
    except OSError:
        listener.close()
        raise
    return listener


def _cannot_listen(place: Place, error: OSError) -> AppFailure:
    host, port = place.peers[place.rank]
    if error.errno == errno.EADDRINUSE:
        return PortTaken(f"{place.label} cannot listen on {host}:{port}: something else does")
    return AppFailure(f"{place.label} cannot listen on {host}:{port}: {error.strerror}")
