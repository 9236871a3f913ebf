"""Work whose length apps decide, in threads of its own.

Laying out what an app ships, copying what it saved, removing what it wrote: each takes as long as its files are large or
many.  The event loop's own threads are few, and the node's lease needs them.  Work of one tenant in all of them would end the
lease, and with it every container of the node.

    LongWork   runs such work: a little of each party's at once, so nobody's waits for another's
    Remains    removes folders that nobody uses any more, one after the other
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
        """Return what `work` returns, once it was the turn of this party's.  Raises what it raises, and OSError where the
        machine has no thread left.  Who gives up waiting does not end it: its turn is over when it has ended."""
        turn = self._turns.get(whose)
        if turn is None:
            turn = self._turns[whose] = asyncio.Semaphore(self._of_one)
        await turn.acquire()
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        ended.add_done_callback(lambda _: turn.release())
        # An error that nobody waits for any more is no news.
        ended.add_done_callback(lambda done: done.cancelled() or done.exception())
        context = contextvars.copy_context()
        args = (ended, lambda: context.run(work))
        try:
            threading.Thread(target=_do, args=args, name=self._name, daemon=True).start()
        except RuntimeError as error:
            ended.cancel()
            raise OSError(errno.EAGAIN, str(error)) from None
        return await asyncio.shield(ended)


def _do(ended: asyncio.Future[T], work: Callable[[], T]) -> None:
    result: T | None = None
    failure: BaseException | None = None
    try:
        result = work()
    except BaseException as error:
        failure = error

    def settle() -> None:
        if ended.done():
            return
        if failure is not None:
            ended.set_exception(failure)
        else:
            ended.set_result(result)  # type: ignore[arg-type]  # `work` has returned it.

    with contextlib.suppress(RuntimeError):  # The loop is closed.
        ended.get_loop().call_soon_threadsafe(settle)


class Remains:
    """Folders to be removed by `delete`, in a thread that is there while there are some.  One that a dead process leaves is
    for the next one to find."""

    def __init__(self, delete: Callable[[Path], None]) -> None:
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
