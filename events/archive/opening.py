"""Open an archive that any release wrote, from a file or from standard input."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, TypeAlias

from events.archive.files import closed_on_error, open_file, refusing
from events.archive.index import MAGIC
from events.archive.legacy import LegacyLog
from events.archive.segments import SegmentLog

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Archive", "open_archive"]

Archive: TypeAlias = SegmentLog | LegacyLog
"""Either can be read as any log can, and reports its damage (`damages`)."""
_POLL_S = 0.05
_CHUNK = 1 << 20


async def open_archive(path: Path) -> Archive:
    """Open an archive; `-` is standard input.  Raises LogRefused."""
    if str(path) == "-":
        return await asyncio.to_thread(_archive_of, await _spooled(), "standard input")
    return await asyncio.to_thread(_open, path)


def _open(path: Path) -> Archive:
    return _archive_of(open_file(path), str(path))


def _archive_of(file: int, name: str) -> Archive:
    with closed_on_error(file, name):
        start = os.pread(file, len(MAGIC), 0)
    return SegmentLog.of_file(file, name) if start == MAGIC else LegacyLog.of_file(file, name)


async def _spooled() -> int:
    """Copy standard input to a file without a name, since a log is not read in one pass.  Raises LogRefused."""
    stop = threading.Event()
    copying = asyncio.create_task(asyncio.to_thread(_spool, stop))
    try:
        return await asyncio.shield(copying)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({copying})
        if copying.exception() is None:
            os.close(copying.result())
        raise


def _spool(stop: threading.Event) -> int:
    source = sys.stdin.fileno()
    with refusing("standard input"), tempfile.TemporaryFile() as spool:
        while not stop.is_set():
            # The pipe's writer may take long, and Ctrl-C must not wait for it.
            if not select.select([source], [], [], _POLL_S)[0]:
                continue
            chunk = os.read(source, _CHUNK)
            if not chunk:
                break
            spool.write(chunk)
        spool.flush()
        return os.dup(spool.fileno())
