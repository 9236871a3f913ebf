"""Read the log of a process-runtime container: the part moved aside, then the current file, then new output."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

_CHUNK = 64 * 1024
_POLL_S = 0.1
"""Seconds between polls of a followed file; the standard library has no inotify."""


async def read_log(
    folder: Path, *, follow: bool, tail: int | None, running: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """Yield chunks of the log, from its last `tail` lines on or all of it; with `follow` until `running` returns False."""
    data, position = await asyncio.to_thread(_so_far, folder, tail)
    for at in range(0, len(data), _CHUNK):
        yield data[at : at + _CHUNK]
    while follow:
        live = await asyncio.to_thread(running)  # checked before reading: once it has ended, its last output is there
        while True:
            chunk, position = await asyncio.to_thread(_from, folder / "log", position)
            if not chunk:
                break
            yield chunk
        if not live:
            return
        await asyncio.sleep(_POLL_S)


def _so_far(folder: Path, tail: int | None) -> tuple[bytes, int]:
    """Return the last `tail` lines of both files, and the end of the current one."""
    current = _read(folder / "log")
    data = _read(folder / "log.1") + current
    if tail is not None:
        data = _last_lines(data, tail)
    return data, len(current)


def _last_lines(data: bytes, count: int) -> bytes:
    if count <= 0:
        return b""
    at = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(count):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _from(path: Path, position: int) -> tuple[bytes, int]:
    """Return the next chunk; from the start again if the file was emptied since."""
    try:
        with path.open("rb") as log:
            if log.seek(0, 2) < position:
                position = 0
            log.seek(position)
            chunk = log.read(_CHUNK)
    except FileNotFoundError:  # removed while it was followed
        return b"", 0
    return chunk, position + len(chunk)
