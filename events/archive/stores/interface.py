"""A store of archives: files that are put once, whole, and never changed.

An archive's name describes its content, so a listing is an index: `<after>-<upto>.<hash>.dorm`, with the sequence
before its first record, its last, and the first 32 hex digits of the file's BLAKE2b-256.  A file that does not match
its name is not used.

    StoreError (LogRefused)   the store can't be used: the message names it and says what to do
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

from events.log.records import LogRefused

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"(\d{15})-(\d{15})\.([0-9a-f]{32})\.dorm")
_DIGITS = 32
_CHUNK = 1 << 20


class StoreError(LogRefused):
    """The store can't be reached, or refuses."""

    code = "archive.store.failed"


class ArchiveMissing(StoreError):
    """The store has no archive of this name."""

    code = "archive.missing"


class Name(NamedTuple):
    """What an archive's name says."""

    after: int
    upto: int
    digest: str

    def __str__(self) -> str:
        return f"{self.after:015}-{self.upto:015}.{self.digest}.dorm"


def name_of(text: str) -> Name | None:
    """Return what a name says, None for a file that is not an archive of a rotation."""
    found = _NAME.fullmatch(text)
    return Name(int(found[1]), int(found[2]), found[3]) if found else None


def digest_of(file: int) -> str:
    """Return the hash of an open file, as names hold it.  Raises OSError."""
    import os

    found = hashlib.blake2b(digest_size=32)
    place = 0
    while chunk := os.pread(file, _CHUNK, place):
        found.update(chunk)
        place += len(chunk)
    return found.hexdigest()[:_DIGITS]


class ArchiveStore(Protocol):
    """The archives of one cluster.  Every method raises StoreError."""

    @property
    def place(self) -> str:
        """Where it is, as people name it."""
        ...

    async def names(self) -> list[Name]:
        """Return the archives in it, by sequence; other files are passed over."""
        ...

    async def put(self, name: Name, file: Path) -> None:
        """Store a file under a name: durable once this returns, and never there in part.  A name that exists is replaced,
        since it can only have the same content."""
        ...

    async def fetch(self, name: Name) -> int:
        """Return a descriptor of a local file with the archive's bytes, not checked; the caller closes it.  Raises
        ArchiveMissing."""
        ...

    async def close(self) -> None: ...
