"""Threads that answers are computed in.

A thread cannot be cancelled, so a caller that has gone leaves its work running; what bounds the work is the number of threads
and of those that wait for one.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dorm.api.errors import Unavailable
from events.spec import CheckedSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

T = TypeVar("T")

# msgspec reads a type's annotations on first use, and two threads that do so at once crash the process.  Events and states
# have decoders where they are defined; specs are converted.
msgspec.json.Decoder(CheckedSpec)


class Thread:
    """One thread: what it runs is in order, one after the other."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class Heavy:
    """A bound on expensive work.  Raises Unavailable where too much of it waits."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most = waiting
        self._waiting = 0
        self._executor = ThreadPoolExecutor(at_once, thread_name_prefix="dorm-api-heavy")

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn, and have it for the length of the block."""
        if self._waiting >= self._most:
            raise Unavailable("too many plans, stories and moments are being computed; try again", code="api.busy")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()

    async def run(self, work: Callable[[], T]) -> T:
        """Run in a thread, within a turn.  A caller that is cancelled leaves its thread to the work until that is done."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
