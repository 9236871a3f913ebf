"""One file from an app to this machine.

It is written under a name that says which version of the file it is, and renamed once its digest is right.  An
interrupted copy therefore continues where it stopped, also in another process, and a file never appears incomplete
under its own name.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

from dorm.client.files.asking import FilesRefused
from events.copying import BLOCK, Block, FileDigest, ReadFile, Tail, Zeros, digest_of, write_at
from events.log.records import LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dorm.client.files.asking import Files, Where
    from events.copying import FileEntry

_TRIES = 30
"""How often a copy continues after a lost connection without a single new block."""
_PAUSE_S = 1.0


def part_of(target: Path, entry: FileEntry) -> Path:
    """Return where this version of a file is written before it is complete."""
    name = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]
    return target.with_name(f".dorm-{name}-{entry.size:x}-{entry.modified:x}.part")


async def download(
    files: Files, where: Where, path: str, entry: FileEntry, target: Path, done: Callable[[int], None]
) -> None:
    """Copy the file at `path` of an area, which was listed as `entry`, to `target`; call `done` with bytes as they arrive.
    Raises FilesRefused, OSError, and LogUnavailable after many tries."""
    part = part_of(target, entry)
    copy = _Copy(part, entry)
    try:
        done(await asyncio.to_thread(copy.open))
        tries = 0
        while not copy.complete:
            before = copy.at
            try:
                question = ReadFile(where.place(path), copy.at, entry.size, entry.modified)
                async with contextlib.aclosing(files.read(where, question)) as pieces:
                    async for piece in pieces:
                        match piece:
                            case Block(data):
                                await asyncio.to_thread(copy.write, data)
                                done(len(data))
                            case Zeros(blocks):
                                copy.skip(blocks)
                                done(blocks * BLOCK)
                            case Tail(digest):
                                await asyncio.to_thread(copy.finish, digest)
                            case _:
                                pass
            except LogUnavailable:
                tries = tries + 1 if copy.at == before else 0
                if tries > _TRIES:
                    raise
                await asyncio.sleep(_PAUSE_S)
    finally:
        copy.close()
    await asyncio.to_thread(_rename, part, target, entry)


def _rename(part: Path, target: Path, entry: FileEntry) -> None:
    os.utime(part, ns=(entry.modified, entry.modified))
    if entry.executable:
        part.chmod(part.stat().st_mode | 0o100)
    part.replace(target)


class _Copy:
    """What of the file is here."""

    def __init__(self, part: Path, entry: FileEntry) -> None:
        self._part = part
        self._size = entry.size
        self._file = -1
        self._digest = FileDigest()
        self.at = 0
        self.complete = False

    def open(self) -> int:
        """Open it; return how many bytes are here already."""
        self._file = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        here = min(os.fstat(self._file).st_size, self._size) // BLOCK * BLOCK
        with contextlib.suppress(EOFError):
            self._digest = digest_of(self._file, here)
            self.at = here
        return self.at

    def write(self, data: bytes) -> None:
        write_at(self._file, data, self.at)
        self._digest.add(data)
        self.at += len(data)

    def skip(self, blocks: int) -> None:
        """Leave a hole, which has its size on disk once something follows, or at the end."""
        self._digest.add_zeros(blocks)
        self.at += blocks * BLOCK

    def finish(self, digest: str) -> None:
        os.ftruncate(self._file, self._size)
        if self.at != self._size or self._digest.of(self._size) != digest:
            self._part.unlink(missing_ok=True)
            raise FilesRefused(
                f"{self._part.name} did not arrive as it was sent; copy it again", code="files.copy.damaged"
            )
        os.fsync(self._file)
        self.complete = True

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
