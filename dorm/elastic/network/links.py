"""Connections between members: each has a thread that reads and one that writes, so no caller ever waits for a peer."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from dorm.elastic import arithmetic
from dorm.elastic.errors import PeerError
from dorm.elastic.network.frames import read_frame, to_buffers
from dorm.elastic.network.secret import proof
from dorm.elastic.protocol.messages import Message, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["HANDSHAKE_S", "Link", "accept", "dial"]

HANDSHAKE_S = 5.0
"""Seconds within which a stranger has to prove its identity."""
_LARGEST_GREETING = 4096
"""Bytes."""


class Link:
    """One connection with a known peer."""

    def __init__(
        self,
        peer: int,
        connection: socket.socket,
        on_message: Callable[[int, Message], None],
        on_lost: Callable[[Link], None],
    ) -> None:
        self.peer = peer
        self.heard_at = time.monotonic()
        self.hung_up = False
        """Whether the peer's side has ended the connection: its process ended, or took this one for dead."""
        self._connection = connection
        self._on_message = on_message
        self._on_lost = on_lost
        self._outgoing: deque[Message | None] = deque()
        self._some = threading.Condition()
        self._closing = False
        self._reader = threading.Thread(target=self._read, name=f"elastic-read-{peer}", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"elastic-write-{peer}", daemon=True)

    def start(self) -> None:
        self._reader.start()
        self._writer.start()

    def send(self, message: Message | None) -> None:
        """Queue a message; None is a keep-alive, which is skipped while other messages wait."""
        with self._some:
            if message is not None or not self._outgoing:
                self._outgoing.append(message)
                self._some.notify()

    def finish(self) -> None:
        """Close once everything is sent."""
        with self._some:
            self._closing = True
            self._some.notify()

    def join(self, deadline: float) -> None:
        """Wait until the peer has closed its side too, at most until `deadline` (monotonic seconds)."""
        for thread in (self._writer, self._reader):
            thread.join(max(0.0, deadline - time.monotonic()))
        self.cut()

    def cut(self) -> None:
        """Close at once."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self.finish()

    def _heard(self) -> None:
        self.heard_at = time.monotonic()

    def _read(self) -> None:
        with contextlib.suppress(OSError, PeerError, MemoryError), self._noticing():
            while (frame := read_frame(self._connection.recv_into, self._heard)) is not None:
                header, arrays = frame
                if header.get("kind") != "Alive":
                    self._on_message(self.peer, decode(header, arrays))
            self.hung_up = True
        self._on_lost(self)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        """A process that is killed with unread data resets its connections."""
        try:
            yield
        except ConnectionResetError:
            self.hung_up = True
            raise

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self._some:
                    while not self._outgoing and not self._closing:
                        self._some.wait()
                    if not self._outgoing:
                        break
                    message = self._outgoing.popleft()
                header, arrays = encode(message) if message is not None else ({"kind": "Alive"}, [])
                for buffer in to_buffers(header, arrays):
                    self._connection.sendall(buffer)
            self._connection.shutdown(socket.SHUT_WR)


def dial(address: tuple[str, int], own: int, peer: int, group: str, key: bytes) -> tuple[socket.socket, str]:
    """Connect with a peer and prove this member's identity; return the connection, and how the peer rounds (`arithmetic`; ""
    if unknown).  Raises OSError, also if the peer is not the expected one."""
    connection = socket.create_connection(address, timeout=HANDSHAKE_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = secrets.token_hex(16)
        greeting = {"group": group, "slot": own, "to": peer, "challenge": challenge, "arithmetic": arithmetic.digest()}
        _send(connection, greeting)
        answer = _receive(connection)
        if answer.get("proof") != proof(key, challenge, group, peer, own):
            raise PeerError(f"{address[0]}:{address[1]} is not slot {peer} of this app", code="elastic.peer.stranger")
        _send(connection, {"proof": proof(key, str(answer.get("challenge")), group, own, peer)})
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection, str(answer.get("arithmetic", ""))


def accept(connection: socket.socket, own: int, group: str, key: bytes) -> tuple[int, str]:
    """Let a caller prove its identity; return its slot, and how it rounds (`arithmetic`; "" if unknown).  Raises
    OSError."""
    connection.settimeout(HANDSHAKE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    greeting = _receive(connection)
    peer, peer_challenge, challenge = greeting.get("slot"), str(greeting.get("challenge")), secrets.token_hex(16)
    if greeting.get("group") != group or greeting.get("to") != own or not isinstance(peer, int):
        raise PeerError("a caller looks for someone else", code="elastic.peer.stranger")
    answer = {
        "proof": proof(key, peer_challenge, group, own, peer),
        "challenge": challenge,
        "arithmetic": arithmetic.digest(),
    }
    _send(connection, answer)
    if _receive(connection).get("proof") != proof(key, challenge, group, peer, own):
        raise PeerError(f"a caller is not slot {peer}", code="elastic.peer.stranger")
    connection.settimeout(None)
    return peer, str(greeting.get("arithmetic", ""))


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    for buffer in to_buffers(message, []):
        connection.sendall(buffer)


def _receive(connection: socket.socket) -> dict[str, Any]:
    frame = read_frame(connection.recv_into, lambda: None, largest=_LARGEST_GREETING)
    if frame is None:
        raise PeerError("a caller hung up", code="elastic.peer.stranger")
    return frame[0]
