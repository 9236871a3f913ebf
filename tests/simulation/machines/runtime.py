"""The runtime over a simulated machine: an agent sees it with a delay, and not at all while the engine is down.

The engine performs requests a moment after they were made, even if the agent has died since.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agents.fitness import HealthProgram, Verdict
from agents.runtime.interface import (
    NOT_FOUND,
    TIMED_OUT,
    ContainerSpec,
    Key,
    RuntimeFault,
    Seen,
    Unavailable,
    Use,
    Wanted,
    check_spec,
    key_name,
)
from agents.runtime.workdir import BlobCache
from events.requests import LogPiece, LogStretch
from tests.simulation.machines.apps import SAVE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from random import Random

    from agents.runtime.interface import Command, Execution, Listener
    from tests.simulation.machines.machine import Container, Machine

Answer = TypeVar("Answer")
_TIMEOUT_S = 10.0
"""Time after which a request counts as unanswered; it may still be performed."""
_SAVE_S = 0.3
_DIE_S = 30.0
HEALTH_EVERY_S = 5.0


class SimHealth(HealthProgram):
    """The operator's health program on a simulated machine."""

    def __init__(self, machine: Machine, chance: Random) -> None:
        super().__init__(Path("/health"), every_s=HEALTH_EVERY_S)
        self._machine = machine
        self._chance = chance

    async def _ask(self) -> Verdict:
        await asyncio.sleep(self._chance.uniform(0.05, 0.5))
        return Verdict(not self._machine.ill, self._machine.ill)


class SimRuntime:
    """The runtime for one life of an agent; the machine outlives it."""

    name = "simulated"
    limits = True
    checkpoint_mount = ""
    outputs_mount = ""
    mounts = False
    serves = ""
    engine_folder = None

    def __init__(self, machine: Machine, chance: Random) -> None:
        self._machine = machine
        self._chance = chance
        self._locks: dict[Key, asyncio.Lock] = {}
        self._hint = asyncio.Event()
        self._closed = False
        self._folders_lost = machine.folders_lost

    @property
    def blobs(self) -> BlobCache:
        return BlobCache(self._machine.folder / "workdirs")

    def owner_of(self, tenant: str) -> tuple[int, int] | None:
        return None

    async def open(self) -> None:
        await self._ask(lambda: None)
        self._machine.listeners.append(self._changed)

    async def close(self) -> None:
        self._closed = True
        with contextlib.suppress(ValueError):
            self._machine.listeners.remove(self._changed)
        self._hint.set()

    def _changed(self) -> None:
        if self._chance.random() < 0.9:
            self._machine.later(self._chance.uniform(0, 0.05), self._hint.set)

    async def _ask(self, perform: Callable[[], Answer], more_s: float = 0.0) -> Answer:
        """Have the engine do something, which takes `more_s` longer than usual.  Raises its exceptions, and Unavailable."""
        answer: asyncio.Future[tuple[Any, RuntimeFault | KeyError | None]] = asyncio.get_running_loop().create_future()

        def act() -> None:
            result: tuple[Any, RuntimeFault | KeyError | None]
            try:
                self._machine.opened(self._folders_lost)
                result = (perform(), None) if self._machine.engine_up else (None, Unavailable("the engine is down"))
            except (RuntimeFault, KeyError) as error:
                result = (None, error)
            if not answer.done():
                answer.set_result(result)

        if not self._machine.engine_up:
            await asyncio.sleep(0.01)
            raise Unavailable("the engine does not answer")
        self._machine.later(self._machine.delay_s * self._chance.uniform(0.3, 1.5) + more_s, act)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                given, error = await answer
        except TimeoutError:
            raise Unavailable("the engine did not answer in time") from None
        if error is not None:
            raise error
        result: Answer = given
        return result

    # --- containers ----------------------------------------------------------------------------------------------------

    async def list(self) -> list[Seen]:
        return await self._ask(
            lambda: [self._machine.containers[key].seen() for key in sorted(self._machine.containers)]
        )

    async def ensure(self, spec: ContainerSpec, files: Mapping[str, bytes] | None = None) -> Seen:
        check_spec(spec)
        async with self._locks.setdefault(spec.key, asyncio.Lock()):
            made = await self._ask(lambda: self._machine.create(spec))
            if made.state == "created":
                left = await self.lease_left()
                if left is not None and left <= 0:
                    raise Unavailable("the node's lease is over, so nothing is started until it is extended")
                try:
                    for name, content in (files or {}).items():
                        await self.put(spec.key, name, content)
                except KeyError:
                    raise Unavailable("it was removed while it was started") from None
                await self._ask(lambda: self._machine.launch(spec.key), self._machine.launch_s)
            return await self._ask(made.seen)

    async def prepare(self, spec: ContainerSpec) -> None:
        check_spec(spec)
        async with self._locks.setdefault(spec.key, asyncio.Lock()):
            await self._ask(lambda: self._machine.create(spec, ahead=True))

    async def stop(self, key: Key, grace_s: float) -> bool:
        container = await self._ask(lambda: self._note_asked(key))
        if container is None:
            return False
        if grace_s > 0:
            await self._ask(lambda: self._machine.terminate(key))
            if await self._ended(container, grace_s):
                return False
        await self._ask(lambda: self._machine.kill(key))
        if not await self._ended(container, _DIE_S):
            raise Unavailable("it does not die")
        return True

    def _note_asked(self, key: Key) -> Container | None:
        container = self._machine.containers.get(key)
        if container is None or container.state != "running":
            return None
        if not container.asked:
            container.asked = True
            self._machine.witness.asked(container)
        return container

    async def _ended(self, container: Container, within_s: float) -> bool:
        """Return whether it has ended by then."""
        if container.state == "running":
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            container.waiters.append(waiter)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await waiter
        return container.state != "running"

    async def run(self, key: Key, command: tuple[str, ...], timeout_s: float) -> int:
        container = await self._ask(lambda: self._machine.containers.get(key))
        if container is None or container.state != "running" or container.program is None:
            raise KeyError(key)
        if list(command) != SAVE:
            return NOT_FOUND
        if self._chance.random() < 0.1 and not container.program.calm:
            await asyncio.sleep(timeout_s)
            return TIMED_OUT
        await asyncio.sleep(_SAVE_S)
        if container.state == "running":
            await self._ask(container.program.save)
        return 0

    async def remove(self, key: Key) -> None:
        await self._ask(lambda: self._machine.remove(key))

    async def logs(self, key: Key, *, follow: bool, tail: int | None) -> AsyncGenerator[bytes, None]:
        container = await self._ask(lambda: self._machine.containers.get(key))
        if container is None:
            raise KeyError(key)
        yield container.said

    async def timed_logs(self, key: Key, wanted: Wanted) -> AsyncGenerator[LogPiece, None]:
        async for chunk in self.logs(key, follow=wanted.follow, tail=wanted.tail):
            yield LogPiece([LogStretch(0, chunk)], "end")

    async def use(self, key: Key) -> Use | None:
        container = await self._ask(lambda: self._machine.containers.get(key))
        if container is None or container.state != "running":
            return None
        return Use(cpu_s=1.0, memory=2**20)

    def run_dir(self, key: Key) -> Path:
        container = self._machine.containers.get(key)
        if container is None:
            return self._machine.folder / "runs" / "none"
        return container.folder

    def run_mount(self, key: Key) -> str:
        return str(self._machine.folder / "runs" / key_name(key))

    async def put(self, key: Key, name: str, content: bytes) -> None:
        await self._ask(lambda: self._machine.put(key, name, content))

    async def hints(self) -> AsyncGenerator[None, None]:
        while not self._closed:
            yield None
            await self._hint.wait()
            self._hint.clear()

    # --- the lease -----------------------------------------------------------------------------------------------------

    async def extend_lease(self, seconds: float) -> None:
        self._machine.opened(self._folders_lost)
        self._machine.extend_lease(seconds)

    async def lease_left(self) -> float | None:
        self._machine.opened(self._folders_lost)
        until = self._machine.lease_until
        return None if until is None else until - self._machine.world.now

    async def variables(self, key: Key) -> dict[str, str]:
        return {}

    async def runs(self, key: Key) -> bool:
        return False

    async def execute(self, key: Key, command: Command) -> Execution:
        raise KeyError(key)

    async def listener(self, key: Key, port: int) -> Listener | None:
        raise KeyError(key)

    async def root_id(self) -> str:
        return f"{self._machine.place}.{self._folders_lost}"
