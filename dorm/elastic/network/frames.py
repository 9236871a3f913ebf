"""A message as bytes: lengths, a JSON header, and the arrays as they lie in memory.

    4 bytes  b"DRM1"
    4 bytes  length of the header, big-endian
    header   JSON; "arrays" lists [dtype, shape] of each array
    arrays   in C order, one after the other

Lengths are bounded before anything is read, and only dtypes of plain numbers are accepted.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.elastic.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Arrays = list[npt.NDArray[Any]]
    Receive = Callable[[memoryview], int]

__all__ = ["LARGEST_HEADER", "read_frame", "to_buffers"]

_MAGIC = b"DRM1"
_HEAD = struct.Struct(">4sI")
LARGEST_HEADER = 16 * 1024 * 1024
"""Bytes."""
_LARGEST_ARRAYS = 1 << 36
"""Bytes of all arrays of a message: 64 GiB."""
_PIECE = 1 << 18


def to_buffers(header: dict[str, Any], arrays: Arrays) -> list[memoryview]:
    """Return the buffers to send, without copying contiguous arrays."""
    described = {**header, "arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}
    text = json.dumps(described, separators=(",", ":")).encode()
    buffers = [memoryview(_HEAD.pack(_MAGIC, len(text)) + text)]
    buffers.extend(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays if array.nbytes)
    return buffers


def read_frame(
    receive: Receive, heard: Callable[[], None], largest: int = LARGEST_HEADER
) -> tuple[dict[str, Any], Arrays] | None:
    """Return the next header and its arrays, None at the end of the stream.  `receive` is a socket's `recv_into` or a file's
    `readinto`; `heard` is called whenever bytes arrive.

    Raises PeerError for an invalid frame, OSError if the connection breaks.
    """
    head = _read(receive, _HEAD.size, heard, at_start=True)
    if head is None:
        return None
    magic, length = _HEAD.unpack(head)
    if magic != _MAGIC or length > largest:
        raise PeerError("what a peer sent is not a frame of this protocol", code="elastic.peer.frame")
    try:
        header = json.loads(bytes(_read(receive, length, heard) or b""))
        shapes = [(np.dtype(str(kind)), tuple(int(n) for n in shape)) for kind, shape in header.pop("arrays")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise PeerError("the header of a peer's frame cannot be read", code="elastic.peer.frame") from None
    sizes = [kind.itemsize * math.prod(shape) for kind, shape in shapes]
    wrong = any(kind.kind not in "biufc" or min(shape, default=0) < 0 for kind, shape in shapes)
    if wrong or sum(sizes) > _LARGEST_ARRAYS or (sizes and largest < LARGEST_HEADER):
        raise PeerError("the arrays of a peer's frame are not acceptable", code="elastic.peer.frame")
    arrays = []
    for (kind, shape), size in zip(shapes, sizes):
        arrays.append(np.frombuffer(_read(receive, size, heard) or b"", dtype=kind).reshape(shape))
    return header, arrays


def _read(receive: Receive, size: int, heard: Callable[[], None], *, at_start: bool = False) -> bytearray | None:
    """Return exactly `size` bytes; None at the end of the stream, if it may end here."""
    if size == 0:
        return bytearray()
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = receive(view[got : got + _PIECE])
        if not count:
            if at_start and got == 0:
                return None
            raise ConnectionResetError("the connection ended inside a frame")
        got += count
        heard()
    return data
