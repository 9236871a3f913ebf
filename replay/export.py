"""A log copied into a file: records byte for byte, with their own sequences and times."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from events.archive import ArchiveLog
from replay import ReplayError

if TYPE_CHECKING:
    from pathlib import Path

    from events.log import EventLog
    from replay import Progress


class ExportError(ReplayError):
    """A file that can't be written, or is there already."""


class Exported(msgspec.Struct, frozen=True):
    """What an export wrote."""

    file: str
    events: int
    bytes: int


async def export(log: EventLog, path: Path, *, force: bool = False, progress: Progress | None = None) -> Exported:
    """Copy a log up to its present end into an archive that `events.archive` reads.

    The file appears whole and durable under its name, or not at all; `force` puts it in the place of one that is there.
    Raises ExportError, what `log.read` raises, and LogRefused or LogDamaged of the archive.
    """
    if not force and await asyncio.to_thread(os.path.lexists, path):
        raise _there(path)
    end = await log.end()
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    try:
        size = await _copy(log, end, unfinished, progress)
        await asyncio.to_thread(_put_in_place, unfinished, path, force)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return Exported(file=str(path), events=end, bytes=size)


async def _copy(log: EventLog, end: int, path: Path, progress: Progress | None) -> int:
    """Its size in bytes."""
    archive = await ArchiveLog.open(path, clock=time.time_ns)
    try:
        if end:
            async with aclosing(log.read()) as batches:
                async for batch in batches:
                    await archive.copy_in([record for record in batch if record.seq <= end])
                    if progress:
                        progress(min(batch[-1].seq, end), end)
                    if batch[-1].seq >= end:
                        break
        if (copied := await archive.end()) != end:
            raise ExportError(f"only {copied} of {end} records could be read; nothing was written to {path}")
    finally:
        await archive.close()
    return (await asyncio.to_thread(path.stat)).st_size


def _put_in_place(unfinished: Path, path: Path, force: bool) -> None:
    try:
        if force:
            unfinished.replace(path)
        else:
            _link(unfinished, path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except FileExistsError:
        raise _there(path) from None
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from None


def _link(unfinished: Path, path: Path) -> None:
    """Unlike a rename, a link never replaces what somebody else put there in the meantime; not all file systems have it."""
    try:
        os.link(unfinished, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        if os.path.lexists(path):
            raise FileExistsError from None
        unfinished.replace(path)


def _there(path: Path) -> ExportError:
    return ExportError(f"{path} is there already; choose another name, or replace it with --force")
