"""The guard of a Docker node's lease, where the engine does not help it, and when nothing is left to guard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from agents import node_lease
from agents.runtime.docker import guard as docker_guard
from tests.agents.harness import PATIENCE_S, POLITE, STUBBORN, Harness, ended, processes, running, says
from tests.agents.wire import wired

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agents.runtime.docker.runtime import DockerRuntime

pytestmark = [pytest.mark.docker, pytest.mark.slow]


PAIR = 2


def guards(root: Path) -> list[psutil.Process]:
    """Those of this root that live."""
    found = []
    for process in processes(docker_guard.__file__):
        with contextlib.suppress(psutil.Error):  # It has ended since.
            if str(root) in process.cmdline():
                found.append(process)
    return found


async def pair(root: Path) -> list[psutil.Process]:
    """Both guards of this root, the older one first; the worker takes a moment to be there."""
    async with asyncio.timeout(PATIENCE_S):
        while len(there := guards(root)) != PAIR:  # noqa: ASYNC110  (no event reports it)
            await asyncio.sleep(0.05)
    return sorted(there, key=lambda guard: guard.create_time())


async def gone(found: list[psutil.Process]) -> None:
    """Wait for their end."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, found, PATIENCE_S)
    assert alive == []


@pytest.mark.parametrize("trouble", ["silent", "down"])
async def test_it_kills_without_the_engine(
    docker_harness: Harness,
    docker_node: Callable[..., DockerRuntime],
    docker_host: str,
    tmp_path: Path,
    unused_number: str,
    trouble: str,
) -> None:
    if os.getuid() != 0:
        pytest.skip("processes of containers are out of reach")
    async with wired(tmp_path / "wire.sock", docker_host) as wire:
        runtime = docker_node(url=wire.url)
        await runtime.open()
        spec = docker_harness.shell(f"setsid sleep {unused_number} & {STUBBORN}")
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        held = await running(unused_number)
        await wire.cut()
        if trouble == "silent":
            wire.silent = True
            await wire.heal()
        await runtime.extend_lease(0.5)
        await gone(held)

        wire.silent = False
        await wire.cut()
        await wire.heal()
        assert (await ended(runtime, spec.key)).lease_ended
        await runtime.remove(spec.key)
        guard = await pair(tmp_path / "node")
        await runtime.close()
        await gone(guard)


async def test_it_ends_when_no_agent_is_there_and_nothing_runs(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], tmp_path: Path
) -> None:
    runtime = docker_node()
    await runtime.open()
    spec = docker_harness.shell(POLITE)
    await runtime.ensure(spec)
    for _ in range(2):
        await runtime.extend_lease(600.0)
    first = await pair(tmp_path / "node")
    for guard in first:  # the next extension misses both
        guard.send_signal(signal.SIGSTOP)
    for guard in first:
        guard.send_signal(signal.SIGKILL)
    await gone(first)
    await runtime.extend_lease(600.0)
    second = await pair(tmp_path / "node")

    await runtime.close()
    with pytest.raises(psutil.TimeoutExpired):
        await asyncio.to_thread(second[0].wait, 1.5)  # what still runs is guarded on
    await runtime.open()
    await runtime.stop(spec.key, 0)
    await runtime.close()
    await gone(second)


async def test_an_engine_that_dies_while_it_answers_ends_no_guard(tmp_path: Path) -> None:
    """With a dead agent, nothing would start another one, and the containers would outlive the lease."""
    asked = asyncio.Queue[None]()

    async def cut_short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.0 200 OK\r\nContent-Length: 500\r\n\r\n[{"Id": "abc')
        writer.close()
        await writer.wait_closed()
        asked.put_nowait(None)

    address = tmp_path / "engine.sock"
    async with await asyncio.start_unix_server(cut_short, address), asyncio.timeout(PATIENCE_S):
        node_lease.write(str(tmp_path / node_lease.FILE), node_lease.after(-1.0), 0)
        command = [docker_guard.__file__, str(tmp_path), f"unix://{address}", "dorm.node=x"]
        starting = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", *command)
        await starting.wait()
        try:
            for _ in range(2):
                await asked.get()
            await pair(tmp_path)
        finally:
            while found := guards(tmp_path):
                for guard in found:
                    guard.kill()
