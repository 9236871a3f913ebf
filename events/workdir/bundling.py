"""Which files share a blob.

A message for each small file would cost a request each, there and on every node.  So small files share a blob with those
that come next in the order of paths, and where a bundle ends follows from the paths: a file that is added, removed or changed
leaves all bundles but its own as they are, and only that one is sent again.  Large files are cut into pieces of their own.
"""

from __future__ import annotations

import hashlib

from events.workdir.limits import BLOB

SMALL = 64 * 1024
"""Bytes: a file below this shares a blob."""
FULL = 256 * 1024
"""Bytes beyond which a bundle takes no more files."""
_EVERY = 32
"""About how many files a bundle has at most."""


def ends_bundle(path: str) -> bool:
    """Return whether a bundle ends after the file with this path."""
    return hashlib.blake2b(path.encode(), digest_size=2).digest()[0] % _EVERY == 0


def pieces(size: int) -> list[tuple[int, int]]:
    """Return offset and length of each piece of a large file."""
    return [(offset, min(BLOB, size - offset)) for offset in range(0, size, BLOB)]
