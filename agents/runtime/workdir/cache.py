"""The blobs that a node keeps, in a folder of its own.

    ROOT/HH/HASH    a blob as the store has it; HH are the hash's first two digits

A blob is written aside and renamed, so a visible one is whole.  Reading one renews its time, by which the longest unused ones
are removed once all together exceed the bound.  Every method blocks: call it from a thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Final

import structlog

from events.workdir import open_blob

if TYPE_CHECKING:
    from pathlib import Path

_log = structlog.get_logger(__name__)
FOLDER: Final = "workdirs"
"""The folder of the cache, beside those of the containers."""
LARGEST: Final = 8 * 2**30
"""Bytes that a node's cache may take."""
_SPARED: Final = 0.9
"""The part of the bound to which a cache that exceeds it is reduced, so that not every blob has it looked at again."""


class BlobCache:
    """The blobs below one folder."""

    def __init__(self, root: Path, most: int = LARGEST) -> None:
        self._root = root
        self._most = most
        self._size: int | None = None
        """Bytes that it has, None before it was looked at."""

    def has(self, name: str) -> bool:
        """Return whether a blob is there, and renew its time; whether it is good shows when it is read."""
        try:
            os.utime(self._path(name))
        except OSError:
            return False
        return True

    def get(self, name: str, most: int) -> bytes | None:
        """Return the content of a blob; None if it is missing, or damaged, in which case it is removed."""
        path = self._path(name)
        try:
            stored = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        content = open_blob(name, stored, most)
        if content is None:
            _log.warning("a part of a shipped folder is damaged in the cache, and is fetched again", path=str(path))
            with contextlib.suppress(OSError):
                path.unlink()
        return content

    def put(self, name: str, stored: bytes) -> None:
        """Keep a blob.  Raises OSError."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = path.with_name(f".{secrets.token_hex(8)}")
        try:
            aside.write_bytes(stored)
            aside.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
        if self._size is not None:
            self._size += len(stored)

    def trim(self) -> None:
        """Remove the longest unused blobs if all together exceed the bound.  Raises OSError."""
        if self._size is not None and self._size <= self._most:
            return
        found = sorted(self._all())
        size = sum(bytes_ for _, bytes_, _ in found)
        if size > self._most:
            for _, bytes_, path in found:
                if size <= self._most * _SPARED:
                    break
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    size -= bytes_
        self._size = size

    def _all(self) -> list[tuple[int, int, str]]:
        """Return time of use, size and path of each blob, and of what a crash has left."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for folder in os.scandir(self._root):
                if folder.is_dir(follow_symlinks=False):
                    for entry in os.scandir(folder.path):
                        with contextlib.suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            found.append((status.st_mtime_ns, status.st_size, entry.path))
        return found

    def _path(self, name: str) -> Path:
        return self._root / name[:2] / name
