"""Messages between workers: a small JSON header and raw float64 numbers, both with their length in front.

Received data is never executed or unpickled, and a message that claims to be longer than expected is refused unread.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import socket

    from compose.apps.worker.arrays import Vector

_PREFIX = struct.Struct("!4sII")  # magic, bytes of JSON, numbers
_MAGIC = b"drm1"
_MAX_HEADER = 4096


class FrameError(Exception):
    """The other side is gone, silent, or uses another protocol; the text says which."""


def send(to: socket.socket, header: dict[str, Any], numbers: Vector | None, timeout_s: float) -> None:
    """Send one frame within `timeout_s`.  Raises `FrameError`."""
    text = json.dumps(header).encode()
    payload = b"" if numbers is None else _little(numbers).tobytes()
    try:
        to.settimeout(timeout_s)
        to.sendall(_PREFIX.pack(_MAGIC, len(text), len(payload) // 8) + text + payload)
    except TimeoutError:
        raise FrameError(f"it has not taken anything for {timeout_s:g} s") from None
    except OSError as error:
        raise FrameError(_strings(error)) from None


def receive(source: socket.socket, count: int, timeout_s: float) -> tuple[dict[str, Any], Vector]:
    """Receive one frame of `count` numbers, or of none, within `timeout_s`.  Raises `FrameError`."""
    deadline = time.monotonic() + timeout_s
    magic, header_size, numbers = _PREFIX.unpack(_read(source, _PREFIX.size, deadline, timeout_s))
    if magic != _MAGIC or header_size > _MAX_HEADER:
        raise FrameError("it speaks another protocol")
    if numbers not in (0, count):
        raise FrameError(f"it sent {numbers} numbers where {count} were expected")
    try:
        header = json.loads(_read(source, header_size, deadline, timeout_s))
    except ValueError:
        raise FrameError("it sent a header that is not JSON") from None
    if not isinstance(header, dict):
        raise FrameError("it sent a header that is not a JSON object")
    payload = _read(source, numbers * 8, deadline, timeout_s)
    return header, _little(np.frombuffer(payload, dtype=np.float64))


def _read(source: socket.socket, size: int, deadline: float, timeout_s: float) -> bytearray:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            source.settimeout(left)
            got = source.recv_into(view)
        except TimeoutError:
            raise FrameError(f"nothing came from it for {timeout_s:g} s") from None
        except OSError as error:
            raise FrameError(_strings(error)) from None
        if got == 0:
            raise FrameError("it closed the connection")
        view = view[got:]
    return buffer


def _strings(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _little(numbers: Vector) -> Vector:
    """Convert to or from the wire's order, which is little-endian, as is nearly every machine."""
    return numbers if sys.byteorder == "little" else numbers.byteswap()
