"""Shipped project folders on a node: kept for the next container, and laid out for each one.

A container may write to its folder, so each has a copy of its own.  Blobs of the cache are read again only by their
hash: a blob that was damaged on the disk counts as missing and is fetched again (`agents.fetching`).

*The cache.*  The blobs lie in a folder of the node's own, each tenant's apart from others'.

    ROOT/TENANT/HH/HASH    a blob as the store has it; HH are the hash's first two digits, TENANT a digest of the tenant

A blob is written aside and renamed, so a visible one is whole.  Reading one renews its time.  Once all together exceed
the bound, the largest tenant gives up its longest unused ones, until it has at most as much as the next: a tenant with
less than its share keeps its blobs, however much others bring.  Knowing the hash of another tenant's folder is of no
use: its own blobs come from the store, which asks whose they are.  Every method blocks: call it from a thread.

*Laying out.*  The manifest says nothing that could leave the folder (`events.workdir`).  The folder is new and no
program can reach it yet, so everything opened below it was made here; still, no link is followed and no file is opened
twice.  Files are the container's own user's, and of the mode that a program's author expects: 0644, or 0755 if it can
be executed.  No manifest can ask for more, such as setuid.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from typing import TYPE_CHECKING, Final

import structlog

from agents.runtime.removing import delete
from events.quantities import short
from events.workdir import BLOB, UNPACKED_MANIFEST, File, Link, ManifestError, decode, open_blob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from events.workdir import Manifest


# --- the cache --------------------------------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)
FOLDER: Final = "workdirs"
"""The folder of the cache, beside those of the containers."""
LARGEST: Final = 8 * 2**30
"""Bytes that a node's cache may take."""
_SPARED: Final = 0.9
"""The part of the bound to which a cache that exceeds it is reduced, so that not every blob has it looked at again."""
_DIGITS: Final = 32
"""Length of the name of a tenant's folder.  Names of two digits are folders of earlier releases, whose blobs belonged to no
tenant."""


class TenantBlobs:
    """The blobs of one tenant."""

    def __init__(self, cache: BlobCache, folder: Path) -> None:
        self._cache = cache
        self._folder = folder

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
        self._cache.grown(len(stored))

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name


class BlobCache:
    """The blobs below one folder."""

    def __init__(self, root: Path, most: int = LARGEST) -> None:
        self._root = root
        self._most = most
        self._size: int | None = None
        """Bytes that it has, None before it was looked at."""

    def of(self, tenant: str) -> TenantBlobs:
        """Return the blobs of one tenant."""
        digits = hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=_DIGITS // 2).hexdigest()
        return TenantBlobs(self, self._root / digits)

    def grown(self, size: int) -> None:
        """Count the added bytes."""
        if self._size is not None:
            self._size += size

    def trim(self) -> None:
        """Remove blobs if all together exceed the bound: see the module.  Raises OSError."""
        if self._size is not None and self._size <= self._most:
            return
        blobs_of = {name: sorted(_blobs(path), reverse=True) for name, path in self._tenants()}
        sizes = {name: sum(bytes_ for _, bytes_, _ in blobs) for name, blobs in blobs_of.items()}
        size = sum(sizes.values())
        if size > self._most:
            while size > self._most * _SPARED and any(sizes.values()):
                largest = max(sizes, key=lambda name: (sizes[name], name))
                _, bytes_, path = blobs_of[largest].pop()
                sizes[largest] -= bytes_
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    size -= bytes_
        self._size = size

    def _tenants(self) -> list[tuple[str, str]]:
        """Return name and path of each tenant's folder.  Those of earlier releases are removed."""
        tenants = []
        with contextlib.suppress(FileNotFoundError):
            for folder in os.scandir(self._root):
                if folder.is_dir(follow_symlinks=False):
                    if len(folder.name) == _DIGITS:
                        tenants.append((folder.name, folder.path))
                    else:
                        delete(self._root / folder.name)
        return tenants


def _blobs(root: str) -> list[tuple[int, int, str]]:
    """Return time of use, size and path of each blob of a tenant, including files left by a crash."""
    blobs = []
    for folder in os.scandir(root):
        if folder.is_dir(follow_symlinks=False):
            for entry in os.scandir(folder.path):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    blobs.append((status.st_mtime_ns, status.st_size, entry.path))
    return blobs


# --- laying out -------------------------------------------------------------------------------------------------------

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


def _make_folders(root: int, names: list[str], made: set[str], owner: tuple[int, int] | None) -> None:
    for depth in range(1, len(names) + 1):
        path = "/".join(names[:depth])
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
