"""Standard output and standard error of a program that runs for long, and must not end or wait because of them.

A pipe's reader may end or stall, a terminal may be held (Ctrl-S), the disk of a redirected log may be full.  `print`, a logger
and the interpreter at its end would then raise, or wait.  So `last` replaces `sys.stdout` and `sys.stderr`: a line goes into a
bounded queue, and a thread writes it.  A line that can't be written, or finds the queue full, is dropped and counted.  The
next line that can be written follows one that says how many were lost; `lost` has the sum, for metrics.  This covers all that
prints here: this program's log, its messages, asyncio's and other libraries' warnings, tracebacks.

The thread writes to the descriptor, never through a buffer of Python's, so nothing is left that could fail at the end of the
interpreter.  At that end, `drain` waits for a moment for the lines that are still queued.  A killed program (-9) loses them.

Where both lead to the same file, one queue keeps their order.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import queue
import select
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_BYTES: Final = 1 << 20
"""Bytes of lines that wait to be written, for each file."""
_LEAVE_S: Final = 1.0
"""Seconds that the end of the program waits for them."""
_POLL_S: Final = 0.005
_RETRIED_S: Final = 0.1


class _Line(NamedTuple):
    descriptor: int
    data: bytes
    dropped: int
    """Lines that were dropped right before it."""
    lost_text: Callable[[int], str] | None
    """Function that returns the line about lost lines; None if this output has none."""


class Writer:
    """Writes queued lines in a thread of its own, for one file."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.lost = 0
        """Lines that were dropped so far."""
        self._most_bytes = most_bytes
        # SimpleQueue and RLock: a finalizer may print while this thread is inside `put`.
        self._lines: queue.SimpleQueue[_Line] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._queued = 0
        self._dropped = 0
        """Lines dropped since the last queued one."""
        self._unsaid = 0
        """Lines lost of which no line says so yet; the thread's own."""
        self._torn = False
        """Whether the last line was written in part."""
        self._runs = False

    def put(self, descriptor: int, text: str, lost_text: Callable[[int], str] | None) -> None:
        """Queue a line, or drop it.  Never raises and never waits."""
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            if self._queued + len(data) > self._most_bytes or not self._running():
                self._dropped += 1
                self.lost += 1
                return
            self._queued += len(data)
            dropped, self._dropped = self._dropped, 0
            self._lines.put(_Line(descriptor, data, dropped, lost_text))

    def drain(self, until: float) -> None:
        """Wait until all is written, at most until this moment of the monotonic clock."""
        while self._queued and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _running(self) -> bool:
        if not self._runs:
            try:
                threading.Thread(target=self._write_all, name="output", daemon=True).start()
            except RuntimeError:  # The machine has no thread left; the next line asks for one again.
                return False
            self._runs = True
        return True

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            self._unsaid += line.dropped
            if self._report_lost(line) and self._written(line.descriptor, line.data):
                self._torn = False
            else:
                self._unsaid += 1
                with self._lock:
                    self.lost += 1
            with self._lock:
                self._queued -= len(line.data)

    def _report_lost(self, line: _Line) -> bool:
        """Say how many lines were lost, if some were; return whether more can be written."""
        if not self._unsaid or line.lost_text is None:
            return not self._torn or self._written(line.descriptor, b"\n")
        text = ("\n" if self._torn else "") + line.lost_text(self._unsaid) + "\n"
        if not self._written(line.descriptor, text.encode("utf-8", "backslashreplace")):
            return False
        self._unsaid, self._torn = 0, False
        return True

    def _written(self, descriptor: int, data: bytes) -> bool:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:  # Another program that has this file open made it so.
                _wait(descriptor)
            except OSError:
                self._torn = self._torn or len(left) < len(data)
                return False
        return True


def _wait(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not poll.poll(_RETRIED_S * 1000):
        time.sleep(_POLL_S)


class Output(io.TextIOBase):
    """A standard stream that never raises and never waits."""

    def __init__(self, descriptor: int, writer: Writer, lost_text: Callable[[int], str] | None) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._writer = writer
        self._lost_text = lost_text
        self._lock = threading.RLock()
        self._begun = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            self._begun += text
            *lines, self._begun = self._begun.split("\n")
            for line in lines:
                self._writer.put(self._descriptor, line + "\n", self._lost_text)
        return len(text)

    def flush(self) -> None:
        """Queue what has no end yet."""
        with self._lock:
            begun, self._begun = self._begun, ""
            if begun:
                self._writer.put(self._descriptor, begun, self._lost_text)

    def close(self) -> None:
        """Do nothing: standard streams stay open."""


_writers: list[Writer] = []


def last(lost_text: Callable[[int], str]) -> None:
    """Let standard output and standard error outlive their files.  `lost_text` returns the line of the log that says how many
    lines were lost.  Streams that are no files (of a test, or of a program that calls this one) stay as they are."""
    _open_closed()
    made: dict[tuple[int, int], Writer] = {}
    for name, descriptor, how in (("stdout", 1, None), ("stderr", 2, lost_text)):
        before = getattr(sys, name)
        if before is not None and not _is_file(before, descriptor):
            continue
        if before is not None:
            with contextlib.suppress(OSError, ValueError):
                before.flush()
        status = os.fstat(descriptor)
        writer = made.setdefault((status.st_dev, status.st_ino), Writer())
        setattr(sys, name, cast("TextIO", Output(descriptor, writer, how)))
    if made and not _writers:
        atexit.register(drain)
    _writers.extend(made.values())


def lost() -> int:
    """Return how many lines of this program were dropped."""
    return sum(writer.lost for writer in _writers)


def drain() -> None:
    """Wait a moment until what was printed is written: call this before the program ends in an unusual way."""
    until = time.monotonic() + _LEAVE_S
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Output):
            stream.flush()
    for writer in _writers:
        writer.drain(until)


def _is_file(stream: TextIO, descriptor: int) -> bool:
    try:
        return not isinstance(stream, Output) and stream.fileno() == descriptor
    except (OSError, ValueError, AttributeError):
        return False


def _open_closed() -> None:
    """Open what the caller has closed (`2>&-`), or the next file that the program opens would get what is printed."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # The lowest number that is free.
