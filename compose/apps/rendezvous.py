"""How the workers of one generation find each other, in whatever order they come up.

Every rank listens on its own port of DORM_PEERS and connects to the next rank's (the last one to rank 0), again and again
until the next one answers or the time is up.  A connection opens with a hello that says who and what the worker is;
strangers and workers of another generation are turned away and waited past, but a worker of this generation that trains
something else is an error at both ends.  The network is trusted: a hello is a check against mistakes, not against malice.
"""

from __future__ import annotations

import errno
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from compose.apps import frames
from compose.apps.failures import AppFailure, PeerLost, PortTaken

if TYPE_CHECKING:
    from compose.apps.contract import Place

_RETRY_S = 0.01
_LONGEST_RETRY_S = 0.25
_HELLO_S = 2.0


def meet(place: Place, run: str, timeout_s: float) -> tuple[socket.socket, socket.socket]:
    """Connections from the rank before and to the rank after.  `run` names settings and state that all must share.

    Raises `PortTaken`, `PeerLost` when the others have not come within `timeout_s`, `AppFailure` where they differ.
    """
    deadline = time.monotonic() + timeout_s
    hello = {"app": place.app, "generation": place.generation, "world_size": place.world_size, "run": run}
    with closing(_listen(place)) as listener:
        # Each connects before it accepts.  The kernel completes connections to a listener by itself, so nobody waits
        # in a circle.
        after = _knock(place, hello, deadline, timeout_s)
        before = _admit(listener, place, hello, deadline, timeout_s)
        while not _welcomed(after, place, deadline):
            after.close()
            time.sleep(_RETRY_S)
            after = _knock(place, hello, deadline, timeout_s)
    return before, after


def _listen(place: Place) -> socket.socket:
    host, port = place.peers[place.rank]
    try:
        # Only on the announced address.  Behind address translation it is not this machine's own: then on all.
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _bind(family, address)
    except socket.gaierror:
        pass
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise _cannot_listen(place, error) from None
    try:
        return _bind(socket.AF_INET, ("", port))
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


def _knock(place: Place, hello: dict[str, Any], deadline: float, timeout_s: float) -> socket.socket:
    rank = (place.rank + 1) % place.world_size
    host, port = place.peers[rank]
    wait = _RETRY_S
    reason = "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            connection = socket.create_connection((host, port), timeout=min(left, _HELLO_S))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        else:
            # A port that nobody listens on, in the kernel's own range, can be connected to itself.
            if connection.getsockname() != connection.getpeername():
                try:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    frames.send(connection, {**hello, "rank": place.rank}, None, _HELLO_S)
                    return connection
                except frames.FrameError as error:
                    reason = str(error)
            connection.close()
        time.sleep(max(0.0, min(wait, deadline - time.monotonic())))
        wait = min(2 * wait, _LONGEST_RETRY_S)
    raise PeerLost(f"{place.label} could not reach rank {rank} at {host}:{port} within {timeout_s:g} s: {reason}")


def _admit(
    listener: socket.socket, place: Place, hello: dict[str, Any], deadline: float, timeout_s: float
) -> socket.socket:
    rank = (place.rank - 1) % place.world_size
    while (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, _ = listener.accept()
        except OSError:  # also when a caller hung up before it was accepted
            continue
        try:
            heard, _ = frames.receive(connection, 0, min(_HELLO_S, left))
            same_partition = all(heard.get(key) == hello[key] for key in ("app", "generation", "world_size"))
            if same_partition and heard.get("rank") == rank:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                agreed = heard.get("run") == hello["run"]
                frames.send(connection, {"agreed": agreed}, None, _HELLO_S)
                if agreed:
                    return connection
                raise _disagreement(place, rank)
        except frames.FrameError:
            pass
        except AppFailure:
            connection.close()
            raise
        connection.close()
    raise PeerLost(f"{place.label} waited {timeout_s:g} s for rank {rank}, which did not come")


def _welcomed(after: socket.socket, place: Place, deadline: float) -> bool:
    """False when the other end hung up without a word, so that it was somebody else, or may come back."""
    rank = (place.rank + 1) % place.world_size
    try:
        answer, _ = frames.receive(after, 0, max(_RETRY_S, deadline - time.monotonic()))
    except frames.FrameError:
        return False
    if answer.get("agreed") is not True:
        raise _disagreement(place, rank)
    return True


def _disagreement(place: Place, rank: int) -> AppFailure:
    return AppFailure(f"{place.label} and rank {rank} have other settings, data or checkpoints")
