"""What the conformance suite needs from each runtime, and ways to wait for what a container does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

import msgspec
import psutil

from agents.runtime.interface import ContainerSpec, Key, Runtime, Seen
from agents.runtime.run_dirs import RUN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

PATIENCE_S = 30.0
"""No wait of the suite is longer; all end as soon as what they wait for has happened."""
POLITE = 'trap "echo bye; exit 7" TERM; echo ready; while :; do sleep 0.05; done'
STUBBORN = 'trap "" TERM; echo ready; while :; do sleep 0.05; done'


class Harness:
    """One node.  `make` gives a runtime object on it that is not open yet, `expression` is Python for the same in
    another process."""

    def __init__(self, make: Callable[[], Runtime], image: str, checkpoint_root: Path, expression: str) -> None:
        self.make = make
        self.expression = expression
        self.image = image
        self.checkpoint_root = checkpoint_root
        self._generations = itertools.count(1)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Runtime]:
        """A runtime object, open; for the restart of an agent."""
        runtime = self.make()
        await runtime.open()
        try:
            yield runtime
        finally:
            await runtime.close()

    def spec(self, *command: str, **fields: object) -> ContainerSpec:
        """A container that no other test has."""
        spec = ContainerSpec(Key("app", next(self._generations), 0), self.image, command, env={}, resources={})
        return msgspec.structs.replace(spec, **fields)

    def shell(self, script: str, **fields: object) -> ContainerSpec:
        """One that runs a shell script."""
        return self.spec("sh", "-c", script, **fields)

    async def clean(self) -> None:
        """Leave no container."""
        async with self.opened() as runtime:
            for seen in await runtime.list():
                await runtime.stop(seen.key, 0)
                await runtime.remove(seen.key)


def container_dir(runtime: Runtime, key: Key) -> Path:
    """The folder of the runtime's own records."""
    return runtime.run_dir(key).parents[len(RUN.parts) - 1]


async def look(runtime: Runtime, key: Key) -> Seen | None:
    """The container as it is listed."""
    return next((seen for seen in await runtime.list() if seen.key == key), None)


async def until(runtime: Runtime, key: Key, right: Callable[[Seen], bool]) -> Seen:
    """Wait, by the runtime's own hints, until a container is as it should be."""
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(runtime.hints()) as hints:
        async for _ in hints:
            seen = await look(runtime, key)
            if seen is not None and right(seen):
                return seen
    raise AssertionError("the hints ended")


async def ended(runtime: Runtime, key: Key) -> Seen:
    """Wait for a container's end."""
    return await until(runtime, key, lambda seen: seen.state == "exited")


async def says(runtime: Runtime, key: Key, text: bytes) -> None:
    """Wait until the container has written this."""
    written = b""
    async with asyncio.timeout(PATIENCE_S):
        async for chunk in runtime.logs(key, follow=True, tail=None):
            written += chunk
            if text in written:
                return
    raise AssertionError(f"it ended and wrote only {written!r}")


async def output(runtime: Runtime, key: Key, *, tail: int | None = None, follow: bool = False) -> bytes:
    """All of its log."""
    async with asyncio.timeout(PATIENCE_S):
        return b"".join([chunk async for chunk in runtime.logs(key, follow=follow, tail=tail)])


def processes(word: str) -> list[psutil.Process]:
    """All of this machine that have this argument."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if word in process.cmdline():
                found.append(process)
    return found


async def running(word: str) -> list[psutil.Process]:
    """Wait for processes that have this argument: a shell that has gone on may not have begun what it started behind it."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := processes(word)):  # noqa: ASYNC110  (no event reports it)
            await asyncio.sleep(0.05)
    return found
