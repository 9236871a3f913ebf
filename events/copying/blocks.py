"""Files in blocks, and the digest of a file.

The digest is SHA-256 over the file's blocks, each as 1 and its bytes or, if all of them are zero, as 0 alone, and over its
size.  So a hole of terabytes costs neither side anything, and a file has one digest however its holes are stored.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK: Final = 512 * 1024
"""Bytes: half of the largest message that every server takes (`events.limits`)."""
_MOST_AT_ONCE = 65_536


class FileDigest:
    """The digest of a file whose blocks are added in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, block: bytes) -> None:
        """Add a block; only the last one may be shorter than `BLOCK`."""
        if is_zeros(block):
            self._hash.update(b"\0")
        else:
            self._hash.update(b"\1")
            self._hash.update(block)

    def add_zeros(self, blocks: int) -> None:
        """Add whole blocks of zeros."""
        while blocks > 0:
            now = min(blocks, _MOST_AT_ONCE)
            self._hash.update(bytes(now))
            blocks -= now

    def of(self, size: int) -> str:
        """Return the digest of the file of this size, 64 hex digits."""
        whole = self._hash.copy()
        whole.update(size.to_bytes(8, "big"))
        return whole.hexdigest()


def is_zeros(block: bytes) -> bool:
    """Return whether all bytes are zero."""
    return block.count(0) == len(block)


def next_block(file: int, at: int, size: int) -> bytes | int:
    """Return the block at `at` of an open file of this size, b"" if it is shorter than that by now, or how many whole blocks
    from there on are a hole.  Blocks.  Raises OSError."""
    hole = (_data_from(file, at, size) - at) // BLOCK
    if hole:
        return hole
    block = bytearray()
    while len(block) < min(BLOCK, size - at):
        more = os.pread(file, min(BLOCK, size - at) - len(block), at + len(block))
        if not more:
            return b""
        block += more
    return bytes(block)


def _data_from(file: int, at: int, size: int) -> int:
    """Return where the next data begins, at or after `at`; `size` if there is none."""
    try:
        return min(size, os.lseek(file, at, os.SEEK_DATA))
    except OSError:  # There is none up to the end; or the file system can't tell, and then says EINVAL.
        return size if _knows_holes(file) else at


def _knows_holes(file: int) -> bool:
    try:
        os.lseek(file, 0, os.SEEK_HOLE)
    except OSError:
        return False
    return True


def write_at(file: int, data: bytes, at: int) -> None:
    """Write all of some bytes into an open file.  Blocks.  Raises OSError."""
    written = 0
    while written < len(data):
        written += os.pwrite(file, data[written:], at + written)


def blocks_of(file: int, size: int, *, upto: int | None = None) -> Iterator[bytes | int]:
    """Yield the blocks of an open file from its start, holes as numbers of whole blocks.  Blocks.  Raises OSError, and
    EOFError if the file is shorter than `size` by now."""
    at, end = 0, size if upto is None else min(upto, size)
    while at < end:
        found = next_block(file, at, size)
        if isinstance(found, int):
            found = min(found, -(-(end - at) // BLOCK))
        elif not found:
            raise EOFError(f"it is shorter than {size} bytes by now")
        at += found * BLOCK if isinstance(found, int) else len(found)
        yield found


def digest_of(file: int, size: int, *, upto: int | None = None) -> FileDigest:
    """Return the digest of an open file's first bytes: of all of it, or `upto` a multiple of `BLOCK`.  Blocks.  Raises as
    `blocks_of`."""
    digest = FileDigest()
    for found in blocks_of(file, size, upto=upto):
        if isinstance(found, int):
            digest.add_zeros(found)
        else:
            digest.add(found)
    return digest
