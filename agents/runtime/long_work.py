"""Work whose length apps decide, in threads of its own.

Laying out an app's shipped folder, copying its checkpoints, removing its files: each takes as long as its files are
large or many.  The event loop's own threads are few, and the node's lease needs them.  Work of one tenant in all of
them would end the lease, and with it every container of the node.

    LongWork   runs such work: a little of each party's at once, so no party waits for another
    Inflight   work that continues when its caller is cancelled: a start requested from an engine can't be withdrawn
    Remains    removes folders that nobody uses any more, one after the other
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import threading
from collections import deque
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path


# --- in threads -------------------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")
_OF_ONE: Final = 2
_log = structlog.get_logger(__name__)


class LongWork:
    """Runs long work in threads that end with it; `of_one`: how much of one party's at once."""

    def __init__(self, name: str, of_one: int = _OF_ONE) -> None:
        """`name` of the threads."""
        self._name = name
        self._of_one = of_one
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, whose: str, work: Callable[[], T]) -> T:
        """Return what `work` returns, once it was the turn of this party's.  Raises its errors, and OSError if the
        machine has no thread left.  Who gives up waiting does not end it: its turn is over when it has ended."""
        turn = self._turns.get(whose)
        if turn is None:
            turn = self._turns[whose] = asyncio.Semaphore(self._of_one)
        await turn.acquire()
        loop = asyncio.get_running_loop()
        inside = partial(contextvars.copy_context().run, work)
        try:
            # The loop's own way to threads: a simulated loop has none, and does the work itself, at a moment of its own.
            ended = loop.run_in_executor(_Threads(self._name, loop), inside)
        except RuntimeError as error:
            turn.release()
            raise OSError(errno.EAGAIN, str(error)) from None
        ended.add_done_callback(lambda _: turn.release())
        # An error that no caller waits for is dropped.
        ended.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(ended)


class _Threads(Executor):
    """A thread for each piece of work.  No process waits for them at its end, as it does for those of a pool."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: who waits for the work's end."""
        self._name = name
        self._loop = loop

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises RuntimeError where the machine has no thread left."""
        ended: Future[T] = Future()
        ended.set_running_or_notify_cancel()
        work = partial(fn, *args, **kwargs)
        threading.Thread(target=self._do, args=(work, ended), name=self._name, daemon=True).start()
        return ended

    def _do(self, work: Callable[[], Any], ended: Future[Any]) -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        if self._loop.is_closed():
            return
        if failure is not None:
            ended.set_exception(failure)
        else:
            ended.set_result(result)


class Remains:
    """Folders to be removed by `delete`, in a thread that is there while there are some.  One that a dead process leaves is
    for the next one to find."""

    def __init__(self, delete: Callable[[Path], object]) -> None:
        self._delete = delete
        self._folders: deque[Path] = deque()
        self._lock = threading.Lock()
        self._working = False

    def put(self, folder: Path) -> None:
        """Remove a folder at some time, which no program can reach by a name that it knows."""
        with self._lock:
            self._folders.append(folder)
            if self._working:
                return
            self._working = True
        try:
            threading.Thread(target=self._remove_all, name="remains", daemon=True).start()
        except RuntimeError:  # The machine has no thread left; the next folder asks for one again.
            with self._lock:
                self._working = False

    def _remove_all(self) -> None:
        while True:
            with self._lock:
                if not self._folders:
                    self._working = False
                    return
                folder = self._folders.popleft()
            try:
                self._delete(folder)
            except OSError as error:
                _log.warning("what remains of an app can't be removed", folder=str(folder), reason=str(error))
            except Exception:
                _log.exception("what remains of an app can't be removed; please report this", folder=str(folder))


# --- starts that outlive their caller ---------------------------------------------------------------------------------

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
