"""A thread that renews the masters' lease when the master's own loop is late.

A leading master's loop folds, decides, and often shares its process with agents and other readers of the log.  A flood of
records, or a slow decision, can keep it from renewing the lease in time, although the master works.  The thread's loop has
nothing else to do, and its connection carries nothing else, so neither a long fold nor a queue of records delays it: the
interpreter switches threads every few milliseconds.

`dorm.master.lease` says when it renews, and when a loop that hangs has to lose its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import structlog

from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from dorm.master.lease import Lease
    from events.log.leadership import Leadership

    Apart = Callable[[], AbstractAsyncContextManager[Leadership]]
    """Returns the lease over a connection of its own, which is made on the loop that enters it."""

_AGAIN_S = 5.0
"""Seconds until the next try if no connection can be made."""
_END_S = 3.0
"""Seconds for the thread to close its connection."""
_log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def standing_in(lease: Lease, apart: Apart) -> AsyncIterator[None]:
    """Renew `lease` in a thread while the body runs, whenever the loop of the body is late."""
    ended = asyncio.Event()
    here = asyncio.get_running_loop()
    there: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []
    cancelled = threading.Event()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        there.append((asyncio.get_running_loop(), task))
        if not cancelled.is_set():
            await _renew(lease, apart)

    def run() -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(work())
        finally:
            with contextlib.suppress(RuntimeError):  # The other loop may be closed, if it did not wait.
                here.call_soon_threadsafe(ended.set)

    # A daemon: a process that ends does not wait for a server that does not answer.
    thread = threading.Thread(target=run, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        cancelled.set()
        for loop, task in there:
            with contextlib.suppress(RuntimeError):  # It has just ended.
                loop.call_soon_threadsafe(task.cancel)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await ended.wait()
                thread.join()  # It has nothing left to do.


async def _renew(lease: Lease, apart: Apart) -> None:
    """The master's own loop renews the lease as well, so a stand-in that fails ends nothing."""
    while True:
        try:
            async with apart() as leadership:
                await lease.stand_in(leadership)
        except DormError as error:
            _log.warning("the lease has no stand-in", reason=str(error), in_s=_AGAIN_S)
        await asyncio.sleep(_AGAIN_S)
