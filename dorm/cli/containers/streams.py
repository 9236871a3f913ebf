"""This program's own input and output, without blocking its loop, and its terminal.

A descriptor is read and written in threads.  Making it non-blocking instead would change it for all who share it: the shell, and
the programs before and behind this one in a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import termios
import threading
import tty
from typing import TYPE_CHECKING

from events.sessions import CHUNK, Size

if TYPE_CHECKING:
    from collections.abc import Iterator

    _Future = asyncio.Future[bytes]


class InputReader:
    """Reads a descriptor, nothing before it is asked for.  A read that is under way does not keep the program from ending."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._asked: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, _Future]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="input", daemon=True).start()

    async def read(self) -> bytes:
        """Return what there is, b"" at the end."""
        loop = asyncio.get_running_loop()
        answer: _Future = loop.create_future()
        self._asked.put((loop, answer))
        return await answer

    def _work(self) -> None:
        while True:
            loop, answer = self._asked.get()
            try:
                data = os.read(self._descriptor, CHUNK)
            except OSError:  # The terminal is gone, or the descriptor is closed.
                data = b""
            with contextlib.suppress(RuntimeError):  # The program is ending.
                loop.call_soon_threadsafe(_give, answer, data)


def _give(answer: _Future, data: bytes) -> None:
    if not answer.done():
        answer.set_result(data)


async def write(descriptor: int, data: bytes) -> None:
    """Write all of it; the caller waits as long as the reader does.  Raises BrokenPipeError, OSError."""
    await asyncio.to_thread(_write, descriptor, data)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # Another program has made it non-blocking.
            import select

            select.select([], [descriptor], [])


def terminal_size() -> Size:
    columns, rows = shutil.get_terminal_size()
    return Size(max(1, columns), max(1, rows))


class RawTerminal:
    """A terminal that passes every key on as it is typed.  It is as before once this is closed, whatever happened."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = termios.tcgetattr(descriptor)

    def set(self) -> None:
        tty.setraw(self._descriptor, termios.TCSANOW)

    def restore(self) -> None:
        with contextlib.suppress(termios.error):  # It is gone.
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)


@contextlib.contextmanager
def raw(descriptor: int) -> Iterator[RawTerminal]:
    """Make a terminal raw while this is open."""
    import atexit

    terminal = RawTerminal(descriptor)
    atexit.register(terminal.restore)
    try:
        terminal.set()
        yield terminal
    finally:
        terminal.restore()
        atexit.unregister(terminal.restore)
