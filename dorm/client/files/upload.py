"""One file from this machine to an app, with several blocks under way at once."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from typing import TYPE_CHECKING

from dorm.client.files.asking import FilesRefused
from events.copying import BLOCK, LARGEST, CommitUpload, WriteBlock, digest_of, is_zeros, next_block

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dorm.client.files.asking import Files, Where

_UNDER_WAY = 4
"""Blocks that are sent at once."""


async def upload(files: Files, where: Where, source: Path, path: str, done: Callable[[int], None]) -> None:
    """Copy a file to `path` of an area; call `done` with bytes as they are stored.  An upload of the same bytes to the same
    place continues where an earlier one stopped.  Raises FilesRefused, OSError, LogUnavailable."""
    file = await asyncio.to_thread(os.open, source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(file)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or size > LARGEST:
            raise FilesRefused(f"{source} is not a regular file of at most {LARGEST:,} bytes", code="files.not_regular")
        try:
            digest = (await asyncio.to_thread(digest_of, file, size)).of(size)
            known = f"{where.app.id}\0{where.area}\0{path}\0{digest}".encode()
            id = hashlib.sha256(known).hexdigest()[:32]
            await _send(files, where, path, id, file, size, done)
        except EOFError:
            raise _changed(source) from None
        place = where.place(path)
        executable = bool(status.st_mode & 0o100)
        await files.write(where, CommitUpload(place, id, size, digest, status.st_mtime_ns, executable))
    finally:
        os.close(file)


async def _send(
    files: Files, where: Where, path: str, id: str, file: int, size: int, done: Callable[[int], None]
) -> None:
    place = where.place(path)
    reached = (await files.write(where, WriteBlock(place, id, 0, b""))).size
    # Blocks are stored in any order, so of the last ones some may be missing.
    at = max(0, min(reached, size) // BLOCK - _UNDER_WAY) * BLOCK
    done(at)
    room = asyncio.Semaphore(_UNDER_WAY)

    async def send(block: bytes, at: int) -> None:
        try:
            await files.write(where, WriteBlock(place, id, at, block))
            done(len(block))
        finally:
            room.release()

    try:
        async with asyncio.TaskGroup() as tasks:
            while at < size:
                found = await asyncio.to_thread(next_block, file, at, size)
                if isinstance(found, int) or (found and is_zeros(found)):
                    length = found * BLOCK if isinstance(found, int) else len(found)
                    done(length)
                elif not found:
                    raise EOFError
                else:
                    length = len(found)
                    await room.acquire()
                    tasks.create_task(send(found, at))
                at += length
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _changed(source: Path) -> FilesRefused:
    return FilesRefused(f"{source} changed while it was copied; copy it again", code="files.changed")
