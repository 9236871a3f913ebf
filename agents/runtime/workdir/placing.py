"""Laying out a shipped folder as the working directory of one container.

The manifest says nothing that could leave the folder (`events.workdir`).  The folder is new and no program can reach
it yet, so everything opened below it was made here; still, no link is followed and no file is opened twice.  Files are
the container's own user's, and of the mode that a program's author expects: 0644, or 0755 if it can be executed.  No
manifest can ask for more, such as setuid.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from events.quantities import short
from events.workdir import BLOB, UNPACKED_MANIFEST, File, Link, ManifestError, decode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agents.runtime.workdir.cache import TenantBlobs
    from events.workdir import Manifest

_READ_AT_ONCE = 8
"""Blobs that are kept while files are written; the files of a bundle follow each other."""


class Incomplete(OSError):
    """The cache lacks a part of the folder, which has to be fetched again."""

    def __init__(self) -> None:
        super().__init__(
            errno.ESTALE, "a part of its project folder is no longer in the node's cache, and is fetched again"
        )


def read_manifest(cache: TenantBlobs, name: str) -> Manifest | None:
    """Return a folder's manifest; None if the cache does not have it.  Raises ManifestError."""
    content = cache.get(name, UNPACKED_MANIFEST)
    return decode(content) if content is not None else None


def place(cache: TenantBlobs, name: str, target: Path, owner: tuple[int, int]) -> None:
    """Lay out the folder with this hash at `target`, which must not exist, for `owner` (uid, gid).  Blocks.  Raises
    Incomplete, OSError, and ManifestError for a manifest that can never be laid out."""
    manifest = read_manifest(cache, name)
    if manifest is None:
        raise Incomplete
    target.mkdir(mode=0o700)
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _fill(cache, manifest, root, owner if owner != (os.getuid(), os.getgid()) else None)
    finally:
        os.close(root)


def _fill(cache: TenantBlobs, manifest: Manifest, root: int, owner: tuple[int, int] | None) -> None:
    blobs = _Blobs(cache, manifest.names())
    made: set[str] = set()
    for entry in manifest.entries:
        *parents, name = entry.path.split("/")
        _make_folders(root, parents, made, owner)
        if isinstance(entry, File):
            _write(root, entry, blobs.of(entry), owner)
        elif isinstance(entry, Link):
            os.symlink(entry.target, entry.path, dir_fd=root)
            _give(root, entry.path, owner)
        else:
            _make_folders(root, [*parents, name], made, owner)
    if owner is not None:
        os.fchown(root, *owner)


def _make_folders(root: int, words: list[str], made: set[str], owner: tuple[int, int] | None) -> None:
    for depth in range(1, len(words) + 1):
        path = "/".join(words[:depth])
        if path not in made:
            os.mkdir(path, 0o755, dir_fd=root)
            _give(root, path, owner)
            made.add(path)


def _write(root: int, file: File, content: Iterator[bytes], owner: tuple[int, int] | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(file.path, flags, 0o755 if file.executable else 0o644, dir_fd=root)
    try:
        for part in content:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        if owner is not None:
            os.fchown(descriptor, *owner)
    finally:
        os.close(descriptor)


def _give(root: int, path: str, owner: tuple[int, int] | None) -> None:
    if owner is not None:
        os.chown(path, *owner, dir_fd=root, follow_symlinks=False)


class _Blobs:
    """Blobs as files need them: each is read and checked once for the files that follow each other in it."""

    def __init__(self, cache: TenantBlobs, names: list[str]) -> None:
        self._cache = cache
        self._names = names
        self._read: dict[int, bytes] = {}

    def of(self, file: File) -> Iterator[bytes]:
        """Yield a file's content.  Raises Incomplete, ManifestError."""
        for part in file.parts:
            content = self._blob(part.blob)
            if part.offset + part.size > len(content):
                raise ManifestError(f"{short(file.path)} names more of a blob than there is")
            yield content[part.offset : part.offset + part.size]

    def _blob(self, number: int) -> bytes:
        content = self._read.pop(number, None)
        if content is None:
            content = self._cache.get(self._names[number], BLOB)
            if content is None:
                raise Incomplete
        self._read[number] = content
        while len(self._read) > _READ_AT_ONCE:
            del self._read[next(iter(self._read))]
        return content
