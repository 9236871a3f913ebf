"""An asyncio event loop in virtual time: it never waits; time jumps to the next timer.

Every callback belongs to a life (of a simulated process) or to nature.  Which one is known by its context, which tasks
inherit from the task that made them.  The callbacks of an ended life are kept and never run, like after SIGKILL: no `finally`
block runs, and nothing has an effect any more.  Those of a paused life are kept until it resumes.

    SimulationError
    ├── Deadlock     nothing to run and nothing to wait for
    └── Livelock     callbacks call each other endlessly, and hardly any time passes
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import sys
from asyncio import events
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from contextvars import Context

STEP_S = 1e-6
"""The duration of each callback. Without it, waiting for a moment that is a rounding error ahead would never end."""
MOST_STEPS_A_SECOND = 300_000
"""Far more callbacks than any legitimate burst of work."""


class SimulationError(Exception):
    """Root of the errors of a simulation itself."""


class Deadlock(SimulationError):
    """All tasks wait, and no timer is set."""


class Livelock(SimulationError):
    """Something loops without waiting."""


class Life:
    """The loop's view of a process: whether its callbacks run, and how many have run."""

    __slots__ = ("alive", "crash_at", "kept", "paused", "running", "steps")

    def __init__(self) -> None:
        self.alive = True
        self.paused = False
        self.running = True
        """Neither dead nor paused: all that the loop asks before each callback."""
        self.steps = 0
        self.crash_at = 0
        """It dies right before this step, 0 for never."""
        self.kept: list[_Handle] = []
        """Callbacks that were due while it did not run, in their order."""

    def crashed(self) -> None:
        """Called by the loop when the step `crash_at` is reached."""
        self.alive = self.running = False


OWNER: contextvars.ContextVar[Life | None] = contextvars.ContextVar("simulated process", default=None)
"""The owner of the callback or task, None for nature."""


class _Handle(asyncio.TimerHandle):
    """A callback with its owner.  Smaller than asyncio's own: a history has tens of thousands of them."""

    __slots__ = ("owner",)

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        if context is None:
            context = contextvars.copy_context()
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self.owner: Life | None = context.get(OWNER)

    def cancel(self) -> None:
        self._cancelled = True
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when

    def __repr__(self) -> str:
        return f"<{self._callback} at {self._when}>"


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address: task groups cancel their tasks in a set's order."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class Loop(asyncio.AbstractEventLoop):
    """Starts at time 0.  Has what asyncio needs for tasks, futures and timers; no sockets, signals, threads, subprocesses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        """Callbacks run so far: equal histories have equal numbers."""
        self.faults: list[str] = []
        """Uncaught exceptions: those of tasks and futures that were never awaited, and of forgotten tasks."""
        self.deaf = False
        """While what is left over is cleared away, its complaints do not count."""
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._count = 0
        self._stopping = False
        self._running = False
        self._closed = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._most_tasks = 256
        self._generators: dict[int, Context] = {}
        self._made = 0
        self._counted, self._counted_at = MOST_STEPS_A_SECOND, 0.0
        """When so many steps are done it is looked since when."""

    # --- scheduling -----------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(self.now, callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(when, callback, args, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def release(self, handles: list[_Handle]) -> None:
        """Run the kept callbacks of a paused process, before those that came since."""
        self._ready.extendleft(reversed(handles))
        handles.clear()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(
            coro, loop=self, name=None if name is None else str(name), context=context
        )
        # Tasks of dead processes must not be garbage-collected before the end, which would run their `finally` blocks.
        self._tasks.append(task)
        if len(self._tasks) > self._most_tasks:
            self._most_tasks = max(256, 2 * len(self.unfinished()))
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it one step later, in the loop, so that the process may die before it, and other steps may come between."""
        del executor
        future = self.create_future()
        self.call_soon(_run_inline, future, func, args)
        return future

    # --- running --------------------------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        """Run until `stop`.  Raises Deadlock, Livelock, and exceptions of nature's callbacks."""
        self._begin()
        try:
            self._run(math.inf)
            if not self._stopping:
                raise Deadlock(f"at {self.now:.3f} s nothing is left that could ever happen")
        finally:
            self._end()

    def run_until_complete(self, future: Any) -> Any:
        future = asyncio.ensure_future(future, loop=self)
        future.add_done_callback(self._stop_by)
        try:
            self.run_forever()
        finally:
            future.remove_done_callback(self._stop_by)
        return future.result()

    def run_to(self, time: float) -> None:
        """Run until nothing is left to do before `time`, and set the time to it."""
        self._begin()
        try:
            self._run(time)
            if not self._stopping:
                self.now = max(self.now, time)
        finally:
            self._end()

    def stop(self) -> None:
        self._stopping = True

    def _stop_by(self, _: object) -> None:
        self._stopping = True

    def _begin(self) -> None:
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("an event loop is running already")
        self._running, self._stopping = True, False
        events._set_running_loop(self)
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._note_generator, finalizer=self._drop_generator)

    def _end(self) -> None:
        self._running = self._stopping = False
        events._set_running_loop(None)
        sys.set_asyncgen_hooks(*self._hooks)

    def _next_timer(self) -> float:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        return timers[0][0] if timers else math.inf

    def _run(self, until: float) -> None:
        """Run everything that is ready or due; if nothing is, jump to the next timer, unless that is after `until`."""
        ready, timers = self._ready, self._timers
        while not self._stopping:
            while timers and timers[0][0] <= self.now:
                ready.append(heapq.heappop(timers)[2])
            if not ready:
                due = self._next_timer()
                if due > until or due == math.inf:
                    return
                self.now = due
                continue
            handle = ready.popleft()
            owner = handle.owner
            if handle._cancelled or (owner is not None and not self._may_run(owner, handle)):
                continue
            self.steps += 1
            self.now += STEP_S
            handle._context.run(handle._callback, *handle._args)
            if self.steps == self._counted:
                self._count_again()

    def _count_again(self) -> None:
        if self.now - self._counted_at < 1.0:
            raise Livelock(f"at {self.now:.3f} s more happens in a second than is possible")
        self._counted, self._counted_at = self.steps + MOST_STEPS_A_SECOND, self.now

    @staticmethod
    def _may_run(owner: Life, handle: _Handle) -> bool:
        if owner.running:
            owner.steps += 1
            if owner.steps != owner.crash_at:
                return True
            owner.crashed()
        owner.kept.append(handle)
        return False

    # --- generators and ends --------------------------------------------------------------------------------------------

    def _note_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = contextvars.copy_context()

    def _drop_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an unfinished generator in a task of the process that began it."""
        context = self._generators.pop(id(generator))
        if not self._closed:
            self.call_soon(self._close_generator, generator, context=context)

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.create_task(_close(generator))

    def unfinished(self) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks; finished ones are dropped, so their unretrieved exceptions appear in `faults`."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return list(self._tasks)

    def forget_timers(self) -> None:
        """Cancel all timers."""
        self._timers.clear()
        self._counted, self._counted_at = self.steps + MOST_STEPS_A_SECOND, self.now

    def close(self) -> None:
        self._closed = True
        self._timers.clear()
        self._ready.clear()
        self._tasks.clear()
        self._generators.clear()

    async def shutdown_asyncgens(self) -> None:
        return None

    async def shutdown_default_executor(self) -> None:
        return None

    # --- what asyncio asks ----------------------------------------------------------------------------------------------

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        del enabled

    def get_task_factory(self) -> Any:
        return None

    def set_task_factory(self, factory: Any) -> None:
        del factory

    def get_exception_handler(self) -> Any:
        return None

    def set_exception_handler(self, handler: Any) -> None:
        del handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.deaf:
            self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")


def _run_inline(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run it like a thread: even if nobody waits for it any more."""
    try:
        result = func(*args)
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


def _close(generator: AsyncGenerator[Any, Any]) -> Coroutine[Any, Any, None]:
    return generator.aclose()
