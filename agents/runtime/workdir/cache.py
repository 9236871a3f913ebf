"""The blobs that a node keeps, in a folder of its own, each tenant's apart from others'.

    ROOT/TENANT/HH/HASH    a blob as the store has it; HH are the hash's first two digits, TENANT a digest of the tenant

A blob is written aside and renamed, so a visible one is whole.  Reading one renews its time.  Once all together exceed
the bound, the largest tenant gives up its longest unused ones, until it has at most as much as the next: a tenant with
less than its share keeps its blobs, however much others bring.  Knowing the hash of another tenant's folder is of no
use: its own blobs come from the store, which asks whose they are.  Every method blocks: call it from a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from typing import TYPE_CHECKING, Final

import structlog

from agents.runtime.removing import delete
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
_DIGITS: Final = 32
"""Of a tenant's folder.  Names of two digits are folders of earlier releases, whose blobs belonged to no tenant."""


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
        found = {name: sorted(_blobs(path), reverse=True) for name, path in self._tenants()}
        sizes = {name: sum(bytes_ for _, bytes_, _ in blobs) for name, blobs in found.items()}
        size = sum(sizes.values())
        if size > self._most:
            while size > self._most * _SPARED and any(sizes.values()):
                largest = max(sizes, key=lambda name: (sizes[name], name))
                _, bytes_, path = found[largest].pop()
                sizes[largest] -= bytes_
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    size -= bytes_
        self._size = size

    def _tenants(self) -> list[tuple[str, str]]:
        """Return name and path of each tenant's folder.  Those of earlier releases are removed."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for folder in os.scandir(self._root):
                if folder.is_dir(follow_symlinks=False):
                    if len(folder.name) == _DIGITS:
                        found.append((folder.name, folder.path))
                    else:
                        delete(self._root / folder.name)
        return found


def _blobs(root: str) -> list[tuple[int, int, str]]:
    """Return time of use, size and path of each blob of a tenant, including files left by a crash."""
    found = []
    for folder in os.scandir(root):
        if folder.is_dir(follow_symlinks=False):
            for entry in os.scandir(folder.path):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
    return found
