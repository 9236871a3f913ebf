"""Work that continues when its caller is cancelled: a start requested from an engine can't be withdrawn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

_PATIENCE_S: Final = 5.0


class Inflight:
    """Holds such tasks until they end, so that none runs untracked."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; cancelling this call leaves it running, to be awaited by `drain`."""
        return await asyncio.shield(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` without waiting for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: a cancelled caller will not

    async def drain(self) -> None:
        """Wait until all is done, within a bound: work that an engine holds up is cancelled, as a crash would end it."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_PATIENCE_S)
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
