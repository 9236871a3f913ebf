"""How a tenant's view of the log comes over the bus.

An answer is a stream of values, each a MessagePack map, compressed, with its length before it.  A value may be larger than a
message, and several may share one.

    {"value": …}                       what was asked for; of a read, each batch of records
    {"names": "3f9c…"}                 first of all: which pseudonyms these are
    {"code": …, "text": …}             why there is no more
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec
import zstandard

from events.log.records import LogDamaged, LogRefused, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_PIECE = 256 * 1024
"""Bytes of one message of an answer."""
_LARGEST = 256 * 2**20
"""Bytes of one value at most."""
_LENGTH = struct.Struct(">I")
_FAST = 1
_encode = msgspec.msgpack.Encoder().encode


class Failure(msgspec.Struct, frozen=True):
    """Why an answer ends."""

    code: str
    text: str

    def error(self) -> LogDamaged | LogRefused | LogUnavailable:
        """Return the error that a log raises for this."""
        kind = LogDamaged if self.code in _DAMAGE else LogUnavailable if self.code in _PASSING else LogRefused
        return kind(self.text, code=self.code)


_DAMAGE = ("log.damaged", "log.truncated", "log.records_missing", "log.records_removed")
_PASSING = ("log.unavailable", "log.view.behind", "log.closed", "log.behind", "log.not_sent")


def packed(**fields: Any) -> bytes:
    """Return one value of an answer."""
    body = zstandard.ZstdCompressor(level=_FAST).compress(_encode(fields))
    return _LENGTH.pack(len(body)) + body


def pieces(packed_values: bytes) -> Iterator[bytes]:
    """Cut values into messages."""
    for begin in range(0, len(packed_values), LARGEST_PIECE):
        yield packed_values[begin : begin + LARGEST_PIECE]


class Unpacking:
    """Puts messages together again."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def take(self, piece: bytes) -> Iterator[dict[str, msgspec.Raw]]:
        """Yield the values that are complete with this piece. Raises LogUnavailable for an invalid answer."""
        self._waiting += piece
        while len(self._waiting) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._waiting)
            if length > _LARGEST:
                raise LogUnavailable("the answer is not a view of the log; ask again", code="log.view.malformed")
            end = _LENGTH.size + length
            if len(self._waiting) < end:
                return
            body = bytes(self._waiting[_LENGTH.size : end])
            del self._waiting[:end]
            try:
                text = zstandard.ZstdDecompressor().decompress(body, max_output_size=_LARGEST)
                yield msgspec.msgpack.decode(text, type=dict[str, msgspec.Raw])
            except (zstandard.ZstdError, msgspec.MsgspecError):
                raise LogUnavailable(
                    "the answer is not a view of the log; ask again", code="log.view.malformed"
                ) from None
