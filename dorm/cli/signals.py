"""Ctrl-C and SIGTERM as events: the first asks for a good end, the second for one at once.

Where SIGINT is ignored when the program starts, it stays ignored: a shell starts background jobs that way, so that Ctrl-C
stops only the program in the foreground.  SIGTERM always counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator


def hears_ctrl_c() -> bool:
    """Return whether SIGINT reaches this program; False in a background job of a script."""
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


class Stops:
    """`first` and `second` are set as the signals come."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def _on_signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """For work without a loop: SIGTERM ends it as Ctrl-C does, so that what it has started is put away."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def stops() -> Iterator[Stops]:
    """Signals set events instead of breaking in anywhere, for as long as this is open."""
    loop = asyncio.get_running_loop()
    events = Stops()
    numbers = (signal.SIGINT, signal.SIGTERM) if hears_ctrl_c() else (signal.SIGTERM,)
    for number in numbers:
        loop.add_signal_handler(number, events._on_signal)
    try:
        yield events
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def run_until_stopped(work: Coroutine[Any, Any, Any]) -> bool:
    """Run until it ends or a signal comes (then it is cancelled, cleanly); True where a signal ended it."""
    with stops() as events:
        return await first_of(work, events.first.wait())


async def first_of(work: Coroutine[Any, Any, Any], stop: Coroutine[Any, Any, Any]) -> bool:
    """Run both until one ends, cancel the other; True where `stop` did.  What `work` raises is raised."""
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
