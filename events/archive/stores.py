"""Where the archives of a rotated log are stored: a folder, or a bucket of an S3-compatible store (`s3`).

A store holds files that are put once, whole, and never changed.  An archive's name describes its content, so a listing
is an index: `<after>-<upto>.<hash>.dorm`, with the sequence before its first record, its last, and the first 32 hex
digits of the file's BLAKE2b-256.  A file that does not match its name is not used.

    StoreError (LogRefused)   the store can't be used: the message names it and says what to do

A folder has its archives in `PLACE/CLUSTER/<name>`: written aside, synced, linked into place.  `place` opens the store
of a place as people name it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
from typing import TYPE_CHECKING, NamedTuple, Protocol

from events.archive.files import create, make_folder
from events.durable import aside, put_in_place, sync_folder
from events.log.records import LogRefused

if TYPE_CHECKING:
    from pathlib import Path


# --- any store --------------------------------------------------------------------------------------------------------

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
    match = _NAME.fullmatch(text)
    return Name(int(match[1]), int(match[2]), match[3]) if match else None


def digest_of(file: int) -> str:
    """Return the hash of an open file, as names hold it.  Raises OSError."""
    import os

    digest = hashlib.blake2b(digest_size=32)
    place = 0
    while chunk := os.pread(file, _CHUNK, place):
        digest.update(chunk)
        place += len(chunk)
    return digest.hexdigest()[:_DIGITS]


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


# --- a folder ---------------------------------------------------------------------------------------------------------


class FolderStore(ArchiveStore):
    """Files appear under their names whole and durable: written aside, synced, renamed, and the folder synced."""

    def __init__(self, folder: Path, cluster: str) -> None:
        self._folder = folder / cluster
        self._place = str(folder)

    @property
    def place(self) -> str:
        return self._place

    async def names(self) -> list[Name]:
        return await asyncio.to_thread(self._names)

    def _names(self) -> list[Name]:
        try:
            names = [name_of(entry) for entry in os.listdir(self._folder)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(error) from None
        return sorted(name for name in names if name is not None)

    async def put(self, name: Name, file: Path) -> None:
        await asyncio.to_thread(self._put, name, file)

    def _put(self, name: Name, file: Path) -> None:
        target = self._folder / str(name)
        unfinished = aside(target)
        try:
            make_folder(self._folder)
            try:
                with file.open("rb") as source, create(unfinished) as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())
                put_in_place(unfinished, target)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    unfinished.unlink()
            sync_folder(self._folder.parent)
        except OSError as error:
            raise self._failed(error) from None

    async def fetch(self, name: Name) -> int:
        return await asyncio.to_thread(self._open, name)

    def _open(self, name: Name) -> int:
        try:
            return os.open(self._folder / str(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ArchiveMissing(
                f"records {name.after + 1:,} to {name.upto:,} are in the archive {name}, which is not in {self._folder}; put "
                "it back from a copy, or name another place with --archives"
            ) from None
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(f"the archives in {self._folder} can't be used: {error.strerror}")

    async def close(self) -> None:
        return None
