"""A folder as blobs and a manifest: content is hashed and not kept, so a folder may be larger than memory.

A file must not change while it is read: its size and its times have to be the same before and after.  A file that changes is
read again, a few times; then the folder is refused with that file's name.  Before sending, content is read again and must have
the same hash, so no mixture of two states is ever shipped.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from dorm.workdir.errors import Changing, Unshippable
from dorm.workdir.scanning import FoundFile, FoundLink, Status
from events.workdir import (
    FULL,
    LARGEST_MANIFEST,
    SMALL,
    UNPACKED_MANIFEST,
    VERSION,
    File,
    Folder,
    Link,
    Manifest,
    Part,
    encode,
    ends_bundle,
    hash_of,
    pieces,
    seal_blob,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dorm.workdir.scanning import Scanned
    from events.workdir import Entry

_TRIES = 3


class Source(NamedTuple):
    """Where a part of a blob is on this machine."""

    path: str
    offset: int
    size: int


class Packed(msgspec.Struct, frozen=True):
    """A folder, ready to be sent."""

    hash: str
    manifest: bytes
    blobs: dict[str, list[Source]]
    """By their names, in the manifest's order."""
    files: int
    size: int
    """Bytes of all files together."""


class Packing:
    """One packing of one folder."""

    def __init__(self, root: Path, scanned: Scanned) -> None:
        self._root = root
        self._scanned = scanned
        self._blobs: dict[str, list[Source]] = {}
        self._places: dict[str, int] = {}
        self._entries: list[Entry] = []
        self._bundle: list[tuple[FoundFile, bytes]] = []
        self._bundled = 0

    def pack(self) -> Packed:
        """Read all files once.  Blocks.  Raises Unshippable, Changing."""
        for entry in self._scanned.entries:
            if isinstance(entry, FoundFile):
                self._file(entry)
            else:
                self._entries.append(
                    Link(entry.path, entry.target) if isinstance(entry, FoundLink) else Folder(entry.path)
                )
        self._end_bundle()
        entries = sorted(self._entries, key=lambda entry: entry.path)
        name, content = encode(Manifest(VERSION, [bytes.fromhex(blob) for blob in self._blobs], entries))
        sealed = seal_blob(content)
        if len(sealed) > LARGEST_MANIFEST or len(content) > UNPACKED_MANIFEST:
            raise Unshippable(
                f"{self._root}: the list of its {len(entries):,} files is too long; leave out what is not needed by lines in "
                ".dormignore",
                code="workdir.too_many_files",
            )
        files = sum(1 for entry in entries if isinstance(entry, File))
        return Packed(name, sealed, self._blobs, files, sum(e.size for e in entries if isinstance(e, File)))

    def _file(self, found: FoundFile) -> None:
        if found.status.size < SMALL:
            content = _whole(self._root, found)
            if self._bundled + len(content) > FULL:
                self._end_bundle()
            self._bundle.append((found, content))
            self._bundled += len(content)
            if ends_bundle(found.path):
                self._end_bundle()
        else:
            cut = _cut(self._root, found)
            parts = [Part(self._place(name, [Source(found.path, offset, size)]), 0, size) for name, offset, size in cut]
            self._entries.append(File(found.path, found.executable, parts))

    def _end_bundle(self) -> None:
        place = -1
        if self._bundled:
            sources = [Source(found.path, 0, len(content)) for found, content in self._bundle if content]
            place = self._place(hash_of(b"".join(content for _, content in self._bundle)), sources)
        offset = 0
        for found, content in self._bundle:
            parts = [Part(place, offset, len(content))] if content else []
            self._entries.append(File(found.path, found.executable, parts))
            offset += len(content)
        self._bundle, self._bundled = [], 0

    def _place(self, name: str, sources: list[Source]) -> int:
        if name not in self._places:
            self._places[name] = len(self._blobs)
            self._blobs[name] = sources
        return self._places[name]


def content_of(root: Path, name: str, sources: list[Source]) -> bytes:
    """Read a blob again, to send it.  Blocks.  Raises Changing if it has changed since it was packed."""
    content = bytearray()
    for source in sources:
        try:
            with _opened(root, source.path) as file:
                content += os.pread(file.fileno(), source.size, source.offset)
        except (OSError, Unshippable):
            raise Changing(source.path) from None
    if hash_of(bytes(content)) != name:
        raise Changing(sources[0].path if len(sources) == 1 else f"one of {sources[0].path} to {sources[-1].path}")
    return bytes(content)


def _whole(root: Path, found: FoundFile) -> bytes:
    """Return the content of a small file."""
    for _ in range(_TRIES):
        with _opened(root, found.path) as file:
            before = Status.of(os.fstat(file.fileno()))
            content = file.read(SMALL + 1)
            if Status.of(os.fstat(file.fileno())) == before and before.size == len(content):
                return content
    raise Changing(found.path)


def _cut(root: Path, found: FoundFile) -> list[tuple[str, int, int]]:
    """Return hash, offset and size of each piece of a large file."""
    for _ in range(_TRIES):
        with _opened(root, found.path) as file:
            before = Status.of(os.fstat(file.fileno()))
            cut = [(name, offset, size) for offset, size, name in _hashed(file.fileno(), before.size)]
            if Status.of(os.fstat(file.fileno())) == before and sum(size for _, _, size in cut) == found.status.size:
                return cut
    raise Changing(found.path)


def _hashed(descriptor: int, size: int) -> Iterator[tuple[int, int, str]]:
    for offset, length in pieces(size):
        content = os.pread(descriptor, length, offset)
        yield offset, len(content), hashlib.sha256(content).hexdigest()


def _opened(root: Path, path: str) -> BinaryIO:
    """Open a regular file; if it has become something else, such as a link, do not follow it."""
    try:
        descriptor = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Changing(path) from None
    except OSError as error:
        raise Unshippable(
            f"{path}: {error.strerror}; make it readable, or leave it out by a line in .dormignore",
            code="workdir.file.unreadable",
        ) from None
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise Changing(path)
    return file
