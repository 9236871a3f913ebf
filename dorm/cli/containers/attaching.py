"""A session at a terminal or in a script: its streams, signals, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from dorm.cli.containers import streams
from dorm.cli.errors import FAILED, INTERRUPTED, TIMED_OUT, Fail
from dorm.cli.signals import hears_ctrl_c
from events.sessions import CHUNK, Begun, Ended, Output

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from dorm.client.sessions import Session

_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a command gets as if it ran here."""
_ENDING: Final = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT)
"""Signals that end a shell on a terminal, where keys already arrive as such."""
_AT_ONCE: Final = 3
"""How many Ctrl-C a command gets to end by itself."""
_NOT_FOUND: Final = 127


class Attached:
    """One session, with this program's standard streams."""

    def __init__(self, session: Session, *, with_input: bool) -> None:
        self._session = session
        self._input = streams.InputReader(0) if with_input else None
        self._begun = asyncio.Event()
        self._stopped = asyncio.Event()
        self._cause = 0
        self._interrupts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, timeout: float | None = None) -> int:
        """Return the command's exit code.  Raises Fail if it did not end by itself, or `timeout` seconds were over."""
        with self._signals(_PASSED_ON, self._pass_on):
            return await self._until_ended(timeout)

    async def run_on_terminal(self, terminal: int, timeout: float | None = None) -> int:
        """The same with this program's terminal in raw mode, whose size the command's follows."""
        with (
            streams.raw(terminal) as raw,
            self._signals(_ENDING, self._stop),
            _signal(signal.SIGCONT, raw.set),
            _signal(signal.SIGWINCH, self._resized),
        ):
            return await self._until_ended(timeout)

    async def _until_ended(self, timeout: float | None) -> int:
        printing = asyncio.create_task(self._print())
        beside = [asyncio.create_task(one) for one in (self._session.keep(), self._stopped.wait(), self._feed())]
        try:
            await asyncio.wait({printing, beside[1]}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if printing.done():
                return self._code(printing.result())
        finally:
            for task in (printing, *beside, *self._tasks):
                task.cancel()
            await asyncio.gather(printing, *beside, *self._tasks, return_exceptions=True)
        if self._stopped.is_set():
            return INTERRUPTED if self._cause == signal.SIGINT else 128 + self._cause
        raise Fail(f"the command did not end within {timeout:g} s, and was killed", TIMED_OUT, code="session.timed_out")

    def _code(self, ended: Ended) -> int:
        if not ended.code:
            return ended.exit_code if ended.exit_code is not None else FAILED
        raise Fail(ended.reason, _NOT_FOUND if ended.exit_code == _NOT_FOUND else FAILED, code=ended.code)

    async def _print(self) -> Ended:
        async with contextlib.aclosing(self._session.answers()) as answers:
            async for answer in answers:
                match answer:
                    case Begun():
                        self._begun.set()
                    case Output():
                        await streams.write(2 if answer.stream == 2 else 1, answer.data)
                    case Ended():
                        return answer
        raise AssertionError("an answer ends with its end, or an error")

    async def _feed(self) -> None:
        await self._begun.wait()
        if self._input is None:
            await self._session.write(b"", last=True)
            return
        while data := await self._input.read():
            for place in range(0, len(data), CHUNK):
                if not await self._session.write(data[place : place + CHUNK]):
                    return
        await self._session.write(b"", last=True)

    # --- signals --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self, numbers: tuple[signal.Signals, ...], handler: Callable[[int], None]) -> Iterator[None]:
        with contextlib.ExitStack() as handlers:
            for number in numbers:
                if number != signal.SIGINT or hears_ctrl_c():
                    handlers.enter_context(_signal(number, handler, number))
            if signal.SIGHUP not in numbers and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                handlers.enter_context(_signal(signal.SIGHUP, self._stop, signal.SIGHUP))
            yield

    def _pass_on(self, number: int) -> None:
        self._cause = number
        self._interrupts += number == signal.SIGINT
        if not self._begun.is_set() or self._interrupts >= _AT_ONCE:
            self._stopped.set()
            return
        self._start(self._session.signal(number))

    def _stop(self, number: int) -> None:
        self._cause = number
        self._stopped.set()

    def _resized(self) -> None:
        self._start(self._session.resize(streams.terminal_size()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@contextlib.contextmanager
def _signal(number: int, handler: Callable[..., None], *arguments: int) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, handler, *arguments)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)


def on_terminal() -> bool:
    """Return whether this program reads from and writes to a terminal."""
    return sys.stdin.isatty() and os.isatty(1)
