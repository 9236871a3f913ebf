"""Work in fresh processes, so that measured time and memory belong to that work alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dorm.bench import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

Item = TypeVar("Item")


class _Ended(NamedTuple):
    error: BaseException | None


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def items_of(works: Sequence[tuple[Callable[..., Iterable[Item]], tuple[Any, ...]]]) -> Generator[Item]:
    """Yield what each (function, arguments) yields in its own process, all at once, in the order of arrival.

    Functions are module-level, arguments and items picklable.  Closing this early ends the processes.  Raises what a function
    raises, and BenchError if a process was killed.
    """
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, SpawnProcess] = {}
    try:
        for function, arguments in works:
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=_send_all, args=(sending, function, arguments), daemon=True)
            with _no_interrupt():
                process.start()
            sending.close()
            running[receiving] = process
        while running:
            for ready in connection.wait(list(running)):
                assert isinstance(ready, connection.Connection)
                item = _next(ready, running[ready])
                if isinstance(item, _Ended):
                    running.pop(ready).join()
                    ready.close()
                    if item.error is not None:
                        raise item.error
                else:
                    yield item
    finally:
        for receiving, process in running.items():
            process.terminate()
            process.join()
            receiving.close()


def _next(ready: Connection, process: SpawnProcess) -> Any:
    try:
        return ready.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        why = f"signal {-code}, which may mean that memory ran out" if code < 0 else f"exit code {code}"
        raise BenchError(f"a measuring process ended by itself ({why})", code="bench.process_ended") from None


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Block Ctrl-C, which a terminal sends to all processes, in processes started here: the reporting process ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _send_all(to: Connection, function: Callable[..., Iterable[Any]], arguments: tuple[Any, ...]) -> None:
    # The solver's library sometimes prints a line of its own, which is not part of a bench's result.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # Without a reader there is nothing left to do.
    with contextlib.suppress(BrokenPipeError):
        try:
            for item in function(*arguments):
                to.send(item)
        except BrokenPipeError:
            raise
        except Exception as error:
            error.add_note(f"in a process of its own:\n{traceback.format_exc()}")
            to.send(_Ended(error))
        else:
            to.send(_Ended(None))
