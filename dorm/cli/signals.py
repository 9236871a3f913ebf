"""Ctrl-C, SIGTERM and SIGHUP as events: the first requests a clean end, the second an immediate one.

A signal that is ignored when the program starts stays ignored: a shell starts background jobs without SIGINT, so that Ctrl-C
stops only the program in the foreground, and `nohup` starts programs without SIGHUP.  SIGTERM always counts.  A terminal that
is closed sends SIGHUP, and takes no more output.  A program that reloads files on SIGHUP, as services do, does so unless a
terminal of its own is gone.

`run_service` runs a program until it is stopped, and keeps its service manager informed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from dorm.health.checks import Health


def receives_ctrl_c() -> bool:
    """Return whether SIGINT reaches this program; False in a background job of a script."""
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


class Stops:
    """`first` and `second` are set as the signals come, `cause` to the signal that came last."""

    def __init__(self, reload: Callable[[], None] | None = None) -> None:
        """`reload`: what SIGHUP requests while the program's terminal, if it has one, is there; None for an end."""
        self.cause: int = 0
        self._reload = reload
        self._terminals = [number for number in (0, 1, 2) if _is_terminal(number)]
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def _on_signal(self, number: int) -> None:
        self.cause = number
        (self.second if self.first.is_set() else self.first).set()

    def _on_hangup(self, number: int) -> None:
        """A shell that passes it on may send it several times, so it never requests an immediate end."""
        if self._reload is not None and all(map(_is_terminal, self._terminals)):
            self._reload()
            return
        self.cause = number
        for number in self._terminals:
            if not _is_terminal(number):  # Gone: writing to it raises, which must not spoil a clean end.
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, number)
                os.close(nothing)
        self.first.set()


def _is_terminal(number: int) -> bool:
    return os.isatty(number)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """For work without a loop: let SIGTERM end it as Ctrl-C does, so that it cleans up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def stops(reload: Callable[[], None] | None = None) -> Iterator[Stops]:
    """Let signals set events instead of interrupting, while this is open.  `reload`: what SIGHUP requests instead of an end."""
    loop = asyncio.get_running_loop()
    events = Stops(reload)
    handlers = {signal.SIGTERM: events._on_signal}
    if receives_ctrl_c():
        handlers[signal.SIGINT] = events._on_signal
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = events._on_hangup
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler, number)
    try:
        yield events
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def run_until_stopped(
    work: Coroutine[Any, Any, Any],
    stopping: Callable[[], None] = lambda: None,
    reload: Callable[[], None] | None = None,
) -> bool:
    """Run until the work ends or a signal comes (then it is cancelled, cleanly); return True if a signal ended it.  `stopping`
    is called once the signal has come, and `reload` on SIGHUP, which then requests no end."""

    async def stop() -> None:
        await events.first.wait()
        stopping()

    with stops(reload) as events:
        return await first_of(work, stop())


async def first_of(work: Coroutine[Any, Any, Any], stop: Coroutine[Any, Any, Any]) -> bool:
    """Run both until one ends, cancel the other; return True if `stop` ended.  Raises what `work` raises."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return False
        return True
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def exit_despite_threads() -> NoReturn:
    """End the program with success while a thread computes: nothing can end the thread, and the interpreter would wait for it."""
    from dorm.health import printing

    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    printing.drain()
    os._exit(0)


# --- services ---------------------------------------------------------------------------------------------------------


async def run_service(work: Coroutine[Any, Any, Any], health: Health, reload: Callable[[], None] | None = None) -> None:
    """Run until the work ends or a signal comes, then cancel it cleanly.  `reload`: what SIGHUP requests instead of an end.
    Raises what `work` raises."""
    from dorm.health.systemd import ServiceManager, notifying

    manager = ServiceManager.of_environment(os.environ)
    async with notifying(manager, health):
        await run_until_stopped(work, manager.stopping, reload)
