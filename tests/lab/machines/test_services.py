"""A service is restarted whenever it ends, unless its machine is down; and it ends with its task."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.lab.machines.services import End, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

PATIENCE_S = 30.0
SAYS_ITS_PID = "echo $$; exec sleep 1000"


@contextlib.asynccontextmanager
async def running(output: Path, script: str) -> AsyncIterator[Service]:
    service = Service("some", ["sh", "-c", script], output, os.environ)
    task = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  (nothing tells of other programs)
            await asyncio.sleep(0.01)


def pids(output: Path) -> list[int]:
    return [int(line) for line in output.read_text().splitlines()] if output.exists() else []


async def test_killed_services_restart_and_all_end_at_the_end(tmp_path: Path) -> None:
    output = tmp_path / "out"
    async with running(output, SAYS_ITS_PID) as service:
        await until(lambda: len(pids(output)) == 1)
        service.kill()
        await until(lambda: len(pids(output)) == 2)
        assert service.running
        assert service.ends == [End(-9, True)]
    assert not any(psutil.pid_exists(pid) for pid in pids(output))


async def test_held_services_start_only_on_release(tmp_path: Path) -> None:
    output = tmp_path / "out"
    async with running(output, SAYS_ITS_PID) as service:
        await until(lambda: len(pids(output)) == 1)
        service.hold()
        service.kill()
        await until(lambda: not service.running)
        await asyncio.sleep(0.1)
        assert len(pids(output)) == 1
        service.allow()
        await until(lambda: len(pids(output)) == 2)


async def test_an_unrequested_end_is_distinguished_from_a_requested_one(tmp_path: Path) -> None:
    async with running(tmp_path / "out", "exit 3") as service:
        await until(lambda: len(service.ends) >= 2)
    assert service.ends[:2] == [End(3, False)] * 2


@pytest.mark.parametrize("resumed", [True, False])
async def test_a_paused_process_stops_and_can_be_ended(tmp_path: Path, resumed: bool) -> None:
    output = tmp_path / "out"
    async with running(output, SAYS_ITS_PID) as service:
        await until(lambda: len(pids(output)) == 1)
        (pid,) = pids(output)
        service.pause()
        await until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        if resumed:
            service.resume()
            await until(lambda: psutil.Process(pid).status() != psutil.STATUS_STOPPED)
    assert not psutil.pid_exists(pid)
