"""Read the log of a process-runtime container: the part moved aside, then the current file, then new output.

Both files are one sequence of bytes.  A *position* counts the bytes that the container has written since its start, so
reading continues at the right place although the log moves aside meanwhile.  The supervisor's index
(`agents.runtime.process.times`) gives the position of each file's first byte, and the times of its lines.

A reader that is slower than the container may find that its place is gone.  It continues with the first whole line that is
left, and the piece says how much is missing before it.

Bytes after the last note have the time of the last write to the file.  Supervisors before 0.6.0 wrote no
index: of their logs, only the time of the last line is known, so lines have no time unless they come while the log is
followed, and `since` leaves a file out only if all of it is older.
"""

from __future__ import annotations

import asyncio
import re
import time
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
_MARK = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,19}))?", re.ASCII)
_MOVES_S = 2
"""Seconds that a move of the log may take between its first and its last step."""
_POLL_S = 0.1
"""Seconds between polls of a followed file; the standard library has no inotify."""


class _File(NamedTuple):
    """One of the two files, as it was a moment ago."""

    path: Path
    begin: int
    """The position of its first byte."""
    size: int
    written: int
    """Time of the last write, UTC ns."""
    notes: list[tuple[int, int]] | None
    """Times and positions of its index; None if it has none."""
    breaks: int | None = None
    """Line breaks that were written before its first byte, for the part moved aside before its end; None if they are not
    known."""

    @property
    def end(self) -> int:
        return self.begin + self.size


async def read_log(folder: Path, wanted: Wanted, running: Callable[[], bool]) -> AsyncGenerator[LogPiece, None]:
    """Yield the log in pieces; with `follow` until `running` returns False.  Raises RuntimeFault for a mark that is none."""
    await asyncio.to_thread(_settled, folder)
    files = await asyncio.to_thread(_look, folder)
    end = files[-1].end
    reading = await asyncio.to_thread(_Reading, folder, files, wanted, running)
    last = None if wanted.follow else end

    def state() -> tuple[bool, tuple[int, int] | None]:
        # In this order: once it has ended, its last output is there.
        return wanted.follow and running(), _stat(folder / "log")

    seen: tuple[int, int] | None = None
    while True:
        live, now = await asyncio.to_thread(state)
        while now != seen and (last is None or reading.position < last):
            piece = await asyncio.to_thread(reading.next, last, end)
            if piece is None:
                seen = now
                break
            yield piece
        if not live:
            return
        await asyncio.sleep(_POLL_S)


class _Reading:
    """The place that one reader has reached."""

    def __init__(self, folder: Path, files: list[_File], wanted: Wanted, running: Callable[[], bool]) -> None:
        """Blocks.  Raises RuntimeFault for a mark that is none."""
        self._folder = folder
        self.position, self._breaks = _start(files, wanted)
        # A log that does not grow any more loses nothing, so its lines need not be counted.
        if self._breaks is None and running():
            self._breaks = _breaks_before(files, self.position)

    def next(self, last: int | None, known: int) -> LogPiece | None:
        """Return the next output, up to `last`, None if there is none now.  `known` is the end at the question: the time of
        later output is known without an index.  Blocks."""
        while True:
            state = _settled(self._folder)
            step = self._next(_look(self._folder), last, known)
            # If the log moved meanwhile, these bytes may be of another position.
            if _state(self._folder) == state:
                break
        if step is None:
            return None
        piece, self.position, self._breaks = step
        return piece

    def _next(self, files: list[_File], last: int | None, known: int) -> tuple[LogPiece, int, int | None] | None:
        """Return the next output, the position behind it, and the line breaks before that."""
        position = self.position
        if position > files[-1].end and files[-1].notes is None:
            position = files[-1].begin  # moved aside once more, without an index
        for file in files:
            low = max(position, file.begin)
            high = min(file.end, low + _CHUNK, file.end if last is None else last)
            if low >= high:
                continue
            data = _read(file, low, high)
            if low + len(data) < file.end:  # A line that continues is kept together, if it is not too long.
                data = data[: data.rfind(b"\n") + 1] or data
            if data:
                return self._piece(files, file, position, low, data, known)
        return None

    def _piece(
        self, files: list[_File], file: _File, position: int, low: int, data: bytes, known: int
    ) -> tuple[LogPiece, int, int | None]:
        lost, lines, breaks = low - position, None, self._breaks
        if lost:
            # Of a line whose beginning is lost, the rest says nothing.
            cut = data.find(b"\n") + 1
            if 0 < cut < len(data):
                lost, low, data = lost + cut, low + cut, data[cut:]
            breaks = _breaks_before(files, low)
            if self._breaks is not None and breaks is not None:
                lines = max(0, breaks - self._breaks)
        end = low + len(data)
        breaks = None if breaks is None else breaks + data.count(b"\n")
        mark = str(end) if breaks is None else f"{end}.{breaks}"
        return LogPiece(_stretches(file, low, data, known), mark, lost, lines), end, breaks


def _settled(folder: Path) -> tuple[int, ...]:
    """Return what changes whenever the log moves aside, once it does not move right now.  Blocks."""
    for _ in range(_MOVES_S * 100):
        state = _state(folder)
        log, index = state[:2]
        # The supervisor moves log.1, then times.1, and then writes a new index.  A supervisor whose disk is full, or that was
        # killed in between, leaves it so.
        moves = log > index or (index and not state[2])
        if not moves or time.time_ns() - log > _MOVES_S * 10**9:
            break
        time.sleep(0.01)
    return state


def _state(folder: Path) -> tuple[int, ...]:
    """Return when log.1 and times.1 moved to their places (UTC ns; 0: not there), and where the index begins."""
    changed = []
    for name in ("log.1", f"{times.FILE}.1"):
        try:
            changed.append((folder / name).stat().st_ctime_ns)
        except FileNotFoundError:
            changed.append(0)
    index = _index(folder / times.FILE)
    return (*changed, 0 if index is None else 1 + index[0])


def _breaks_before(files: list[_File], position: int) -> int | None:
    """Return how many line breaks the container wrote before a position in one of the files; None if that is not known."""
    current, aside = files[-1], files[0]
    if position >= current.begin:
        return None if current.breaks is None else current.breaks + _breaks_in(current, current.begin, position)
    if aside.breaks is None or not aside.begin <= position <= aside.end:
        return None
    return aside.breaks - _breaks_in(aside, position, aside.end)


def _breaks_in(file: _File, low: int, high: int) -> int:
    return sum(_read(file, at, min(high, at + _CHUNK)).count(b"\n") for at in range(low, high, _CHUNK))


def _look(folder: Path) -> list[_File]:
    """Return the files, oldest first; the current one is the last, and is there even before it is."""
    aside, current = folder / "log.1", folder / "log"
    index = _index(folder / times.FILE)
    older, newer = _stat(aside), _stat(current) or (0, 0)
    begin, notes, breaks = index if index is not None else (None, None, None)
    if older is None:
        return [_File(current, begin or 0, *newer, notes, breaks)]
    size, written = older
    _, older_notes, older_breaks = _index(folder / f"{times.FILE}.1", times.breaks_up_to_end) or (0, None, None)
    # The last note of a file that moves is made right before that.
    end = older_notes[-1][1] if older_notes else size if begin is None else begin
    return [
        _File(aside, end - size, size, written, older_notes, older_breaks),
        _File(current, max(begin or 0, end), *newer, notes, breaks),
    ]


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def _index(
    path: Path, breaks: Callable[[bytes], int | None] = times.breaks_before
) -> tuple[int, list[tuple[int, int]], int | None] | None:
    try:
        data = path.read_bytes()
        return *times.read(data), breaks(data)
    except (FileNotFoundError, ValueError):
        return None


def _start(files: list[_File], wanted: Wanted) -> tuple[int, int | None]:
    """Return the position from which on output is wanted, and how many line breaks are before it, if a mark says so."""
    if wanted.after:
        mark = _MARK.fullmatch(wanted.after)
        if mark is None:
            raise no_mark(wanted.after)
        return int(mark[1]), int(mark[2]) if mark[2] else None
    start = files[0].begin
    if wanted.tail is not None:
        end = files[-1].end
        start = _behind_break(files, end - 1, wanted.tail) if wanted.tail else end
    if wanted.since is not None:
        start = max(start, _since(files, wanted.since))
    return start, None


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
