"""Simulated hosts and the processes on them.

A host has its own wall clock, a cable to the server and a folder.  A process is one life: once killed, it is gone permanently,
and a restart is another process.  Monotonic time is the loop's, the same for all.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, TypeVar

from events.quantities import SECOND
from tests.simulation.world.loop import OWNER, Life

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from tests.simulation.world.connection import Connection
    from tests.simulation.world.world import World

P = TypeVar("P", bound="Process")


class Process(Life):
    """One process, from its start to its end.  `main` is its first task."""

    def __init__(self, host: Host, name: str, main: Callable[[Process], Coroutine[Any, Any, Any]]) -> None:
        super().__init__()
        self.host = host
        self.name = name
        self.world = host.world
        self.began = host.world.now
        self.ended = False
        """Whether `main` has ended, or the process was killed."""
        self.error: BaseException | None = None
        """What `main` raised."""
        self.connections: list[Connection] = []
        self._on_end: list[Callable[[Process], None]] = []
        self._context = contextvars.Context()
        self._context.run(OWNER.set, self)
        self.world.trace("starts", process=name)
        self._main = self._task(main(self))
        self._main.add_done_callback(self._main_ended, context=self._context)

    def _task(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.world.loop.create_task(coro, context=self._context.copy())

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a further task of this process; an unretrieved exception fails the seed."""
        return self._task(coro)

    def on_end(self, tell: Callable[[Process], None]) -> None:
        """Call `tell`, in nature's name, once it has ended by itself or was killed."""
        self._on_end.append(tell)

    def _main_ended(self, main: asyncio.Task[Any]) -> None:
        error = None if main.cancelled() else main.exception()
        if self.ended:
            return
        self.error = error
        self.world.trace("ended", process=self.name, error=repr(self.error) if self.error else "")
        self.alive = self.running = False
        self._over(lose=False)

    def _over(self, *, lose: bool) -> None:
        self.ended = True
        self.host.processes = [process for process in self.host.processes if process is not self]
        for connection in self.connections:
            connection.link.leave(lose=lose)
        for tell in self._on_end:
            self.world.after(0.0, tell, self)

    def kill(self, *, crash_in: int = 0, lose: bool = False) -> None:
        """Send SIGKILL, at once or right before its `crash_in`-th step from now.  Its sent messages arrive; with `lose`, as in
        a power loss, only a random part of them."""
        if not self.alive:
            return
        if crash_in:
            self.crash_at = self.steps + crash_in
            return
        self.world.trace("is killed", process=self.name, step=self.steps)
        self.alive = self.running = False
        self._over(lose=lose)

    def crashed(self) -> None:
        self.kill()

    def pause(self) -> None:
        """Send SIGSTOP: time continues, and none of its code runs."""
        if self.running:
            self.world.trace("is paused", process=self.name)
            self.paused, self.running = True, False

    def resume(self) -> None:
        """Send SIGCONT: it processes everything that has arrived, and its timers fire late."""
        if self.alive and self.paused:
            self.world.trace("goes on", process=self.name)
            self.paused, self.running = False, True
            self.world.loop.release(self.kept)

    def stop(self) -> None:
        """Send SIGTERM."""
        if self.alive:
            self.world.trace("is told to stop", process=self.name)
            # Its own task has to do it: a paused process receives a signal when it resumes.
            self.world.loop.call_soon(self._main.cancel, context=self._context)

    def unbury(self) -> None:
        """At the end of the world, unwind its tasks, so that Python issues no warnings; its connections are gone, and its
        actions have no effect."""
        self.alive = self.paused = False
        self.crash_at, self.running = 0, True
        self.world.loop.release(self.kept)


class Host:
    """A machine."""

    def __init__(self, world: World, name: str, skew_s: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.folder: Path = world.folder / name
        self.folder.mkdir()
        self.chance = world.chance(f"host {name}")
        self.processes: list[Process] = []
        self.cut_up = self.cut_down = False
        """Which way nothing passes between it and the server."""
        self.lag_until = 0.0
        self.reads_slowly_until = 0.0
        """Until then its processes get the log a few records at a time."""
        self.cuts = 0
        """How often it was cut off, so that what was meant for one cut does not end up in the next."""
        self._skew = int(skew_s * SECOND)

    # --- clock ----------------------------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Return its wall clock, UTC nanoseconds."""
        return self.world.wall() + self._skew

    def step_clock(self, seconds: float) -> None:
        self.world.trace("clock steps", host=self.name, by=seconds)
        self._skew += int(seconds * SECOND)

    # --- processes ------------------------------------------------------------------------------------------------------

    def start(self, name: str, main: Callable[[Process], Coroutine[Any, Any, Any]]) -> Process:
        return self.begin(Process(self, name, main))

    def begin(self, process: P) -> P:
        """Register a new process."""
        self.processes.append(process)
        self.world.processes.append(process)
        return process

    def lose_power(self) -> None:
        """End all its processes at once; their latest messages may not have left the machine."""
        for process in list(self.processes):
            process.kill(lose=True)

    # --- cable ----------------------------------------------------------------------------------------------------------

    def cut(self, *, silent: bool = True, way: str = "both") -> None:
        """Let nothing pass any more.  A silent cut is noticed only by missing messages; otherwise, connections break at once.
        `way`: "both", "up" (nothing reaches the server) or "down".  Several cuts add up, and heal at once."""
        self.world.trace("is cut off", host=self.name, silent=silent, way=way)
        self.cuts += 1
        self.cut_up |= way != "down"
        self.cut_down |= way != "up"
        for link in self._links():
            if silent:
                link.gone_silent()
            else:
                link.broken("the connection was lost")

    def heal(self) -> None:
        """End a cut: messages that a silent cut held back arrive late and in order, if the connection survived the cut."""
        if self.cut_up or self.cut_down:
            self.world.trace("is back", host=self.name)
            self.cuts += 1
            self.cut_up = self.cut_down = False
            for link in self._links():
                link.healed()

    def reset(self) -> None:
        """Break its connections, which are then reopened."""
        self.world.trace("connections break", host=self.name)
        for link in self._links():
            link.broken("the connection was reset")

    def lag(self, seconds: float) -> None:
        """Hold back everything for this long, and then let it pass."""
        self.world.trace("network is slow", host=self.name, seconds=seconds)
        self.lag_until = max(self.lag_until, self.world.loop.now + seconds)

    def _links(self) -> list[Any]:
        return [connection.link for process in self.processes for connection in process.connections]
