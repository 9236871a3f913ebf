"""The log's hash chain: one value that identifies all records up to a sequence.

    h(0) = 32 zero bytes
    h(n) = BLAKE2b-256( h(n-1), MessagePack [seq, time, subject, body, msg_id] of record n )

Integers are in MessagePack's shortest form, so equal records have equal bytes and anyone can recompute the chain.  Marks are
the chain's first bytes at every `MARK_EVERY`-th sequence: they locate where two chains diverge.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from events.log.records import Record

START = bytes(32)
MARK_EVERY = 64
_MARK = 8
_encode = msgspec.msgpack.Encoder().encode


def link(value: bytes, record: Record) -> bytes:
    """Return the chain after one more record."""
    return blake2b(value + _encode(record), digest_size=32).digest()


class Chain:
    """The chain of a log that is read record by record, with the marks since some sequence.

    `seq` and `value` are its start: the log's start, or a place whose chain is known (a snapshot's)."""

    def __init__(self, seq: int = 0, value: bytes = START) -> None:
        self.seq = seq
        self.value = value
        self._marks = bytearray()
        self._first = seq // MARK_EVERY + 1
        """The first mark's sequence, as a multiple of MARK_EVERY."""

    def follow(self, record: Record) -> None:
        """Add the next record.  The caller ensures that its sequence is the next one."""
        self.seq = seq = record.seq
        self.value = value = link(self.value, record)
        if not seq % MARK_EVERY:
            self._marks += value[:_MARK]

    def mark(self, seq: int) -> str:
        """Return the mark at a multiple of MARK_EVERY as 16 hex digits, '' if it is not kept (any more)."""
        index = seq // MARK_EVERY - self._first
        return self._marks[_MARK * index : _MARK * (index + 1)].hex() if index >= 0 else ""

    def forget(self, upto: int) -> None:
        """Drop the marks up to this sequence."""
        gone = upto // MARK_EVERY + 1 - self._first
        if gone > 0:
            del self._marks[: _MARK * gone]
            self._first += gone

    def marks(self, most: int) -> tuple[int, str]:
        """Return the distance between marks in records, and the marks as hex digits: all, or every 2nd, 4th … to stay within
        `most`."""
        every, step = MARK_EVERY, 1
        while len(self._marks) // _MARK > most * step:
            every, step = 2 * every, 2 * step
        begin = -self._first % step
        return every, "".join(
            self.mark((self._first + i) * MARK_EVERY) for i in range(begin, len(self._marks) // _MARK, step)
        )


def mark_places(after: int, upto: int, every: int) -> range:
    """Return the sequences of a seal's marks."""
    return range((after // every + 1) * every, upto + 1, every)
