"""Work that goes on when its caller is cancelled: a start that was asked of an engine cannot be unasked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

_PATIENCE_S: Final = 5.0


class Inflight:
    """Holds the tasks of such work until they end; nothing is ever left running unseen."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; cancelling this call leaves it running, to be awaited by `drain`."""
        return await asyncio.shield(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Let `work` run without waiting for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as seen: a caller who was cancelled will not ask

    async def drain(self) -> None:
        """Wait until all is done, but not for ever: what an engine holds up is cancelled, as a crash would end it."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_PATIENCE_S)
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
