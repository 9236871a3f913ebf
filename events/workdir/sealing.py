"""Blobs as they are stored: compressed (zstd), under the SHA-256 of what they hold.

A blob comes from anyone who may write to the store, so it is opened within bounds and believed only if its hash is right.
"""

from __future__ import annotations

import hashlib

import zstandard

_LEVEL = 3


def hash_of(content: bytes) -> str:
    """Return the name of a blob: the SHA-256 of its content, in hex."""
    return hashlib.sha256(content).hexdigest()


def seal_blob(content: bytes) -> bytes:
    """Return a blob as it is stored."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(content)


def open_blob(name: str, stored: bytes, most: int) -> bytes | None:
    """Return the content of a stored blob; None if it does not match its name, or is larger than `most` bytes."""
    try:
        # A frame states its size, so a small one that unpacks to gigabytes is refused before it takes any memory.
        if not 0 <= zstandard.frame_content_size(stored) <= most:
            return None
        content = zstandard.ZstdDecompressor().decompress(stored, max_output_size=most)
    except zstandard.ZstdError:
        return None
    return content if hash_of(content) == name else None
