"""Read the log of a process-runtime container: the part moved aside, then the current file, then new output.

Both files are one sequence of bytes.  A *position* counts the bytes that the container has written since its start, so
reading continues at the right place although the log moves aside meanwhile.  The supervisor's index
(`agents.runtime.process.times`) gives the position of each file's first byte, and the times of its lines.

Bytes after the last note have the time of the last write to the file.  Supervisors before 0.6.0 wrote no
index: of their logs, only the time of the last line is known, so lines have no time unless they come while the log is
followed, and `since` leaves a file out only if all of it is older.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from agents.runtime.interface import Wanted, no_mark
from agents.runtime.process import times
from events.requests import LogPiece, LogStretch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

_CHUNK = 128 * 1024
"""Bytes of a piece: well below the largest message of every server."""
_POLL_S = 0.1
"""Seconds between polls of a followed file; the standard library has no inotify."""


class _File(NamedTuple):
    """One of the two files, as it was a moment ago."""

    path: Path
    begin: int
    """The position of its first byte."""
    size: int
    written: int
    """When it was last written to, UTC ns."""
    notes: list[tuple[int, int]] | None
    """Times and positions of its index; None if it has none."""

    @property
    def end(self) -> int:
        return self.begin + self.size


async def read_log(folder: Path, wanted: Wanted, running: Callable[[], bool]) -> AsyncGenerator[LogPiece, None]:
    """Yield the log in pieces; with `follow` until `running` returns False.  Raises RuntimeFault for a mark that is none."""
    files = await asyncio.to_thread(_look, folder)
    end = files[-1].end
    position = await asyncio.to_thread(_start, files, wanted)
    last = None if wanted.follow else end

    def state() -> tuple[bool, tuple[int, int] | None]:
        # In this order: once it has ended, its last output is there.
        return wanted.follow and running(), _stat(folder / "log")

    seen: tuple[int, int] | None = None
    while True:
        live, now = await asyncio.to_thread(state)
        while now != seen and (last is None or position < last):
            stretches, position = await asyncio.to_thread(_next, folder, position, last, end)
            if not stretches:
                seen = now
                break
            yield LogPiece(stretches, str(position))
        if not live:
            return
        await asyncio.sleep(_POLL_S)


def _look(folder: Path) -> list[_File]:
    """Return the files, oldest first; the current one is the last, and is there even before it is."""
    aside, current = folder / "log.1", folder / "log"
    index = _index(folder / times.FILE)
    older, newer = _stat(aside), _stat(current) or (0, 0)
    begin, notes = index if index is not None else (None, None)
    if older is None:
        return [_File(current, begin or 0, *newer, notes)]
    size, written = older
    _, older_notes = _index(folder / f"{times.FILE}.1") or (0, None)
    # The last note of a file that moves is made right before that.
    end = older_notes[-1][1] if older_notes else size if begin is None else begin
    return [
        _File(aside, end - size, size, written, older_notes),
        _File(current, max(begin or 0, end), *newer, notes),
    ]


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def _index(path: Path) -> tuple[int, list[tuple[int, int]]] | None:
    try:
        return times.read(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _start(files: list[_File], wanted: Wanted) -> int:
    """Return the position from which on output is wanted."""
    if wanted.after:
        if not (wanted.after.isascii() and wanted.after.isdigit() and len(wanted.after) < 20):
            raise no_mark(wanted.after)
        return int(wanted.after)
    start = files[0].begin
    if wanted.tail is not None:
        end = files[-1].end
        start = _behind_break(files, end - 1, wanted.tail) if wanted.tail else end
    if wanted.since is not None:
        start = max(start, _since(files, wanted.since))
    return start


def _since(files: list[_File], since: int) -> int:
    """Return the position of the first line that may have been written at this time or later."""
    for file in files:
        if not file.size:
            continue
        covered = file.begin
        for at, position in file.notes or ():
            if at >= since:
                return _behind_break(files, covered, 1)
            covered = position
        if covered < file.end and file.written >= since:
            return _behind_break(files, covered, 1)
    return files[-1].end


def _behind_break(files: list[_File], before: int, count: int) -> int:
    """Return the position after the `count`-th last line break before a position; the first position if there are
    fewer."""
    for file in reversed(files):
        high = min(before, file.end)
        while high > file.begin:
            low = max(file.begin, high - _CHUNK)
            data = _read(file, low, high)
            at = len(data)
            while (at := data.rfind(b"\n", 0, at)) >= 0:
                count -= 1
                if not count:
                    return low + at + 1
            high = low
    return files[0].begin


def _read(file: _File, low: int, high: int) -> bytes:
    try:
        with file.path.open("rb") as opened:
            opened.seek(low - file.begin)
            return opened.read(high - low)
    except FileNotFoundError:  # removed while it was read
        return b""


def _next(folder: Path, position: int, last: int | None, known: int) -> tuple[list[LogStretch], int]:
    """Return some output from a position on, up to `last`, and the position behind it.  `known` is the end at the
    question: the time of later output is known without an index."""
    files = _look(folder)
    if position > files[-1].end and files[-1].notes is None:
        position = files[-1].begin  # moved aside once more, without an index
    for file in files:
        low = max(position, file.begin)  # bytes lost between the files are skipped
        high = min(file.end, low + _CHUNK, file.end if last is None else last)
        if low >= high:
            continue
        data = _read(file, low, high)
        if low + len(data) < file.end:  # A line that continues is kept together, if it is not too long.
            data = data[: data.rfind(b"\n") + 1] or data
        if data:
            return _stretches(file, low, data, known), low + len(data)
    return [], position


def _stretches(file: _File, low: int, data: bytes, known: int) -> list[LogStretch]:
    """Divide some output of a file if the times of its lines differ."""
    if file.notes is None:
        old = data[: max(0, known - low)]
        parts = (LogStretch(0, old), LogStretch(file.written, data[len(old) :]))
        return [part for part in parts if part.data]
    stretches, done = list[LogStretch](), 0
    for at, position in file.notes[bisect_left(file.notes, low + 1, key=lambda note: note[1]) :]:
        cut = len(data) if position >= low + len(data) else data.rfind(b"\n", 0, position - low) + 1
        if cut > done:
            stretches.append(LogStretch(at, data[done:cut]))
            done = cut
        if done == len(data):
            return stretches
    return [*stretches, LogStretch(file.written, data[done:])]
