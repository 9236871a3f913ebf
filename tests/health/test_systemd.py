"""Notifications to a service manager, read from a real socket."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest

from dorm.health.checks import Check, Health
from dorm.health.systemd import ServiceManager, notifying

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["path", "abstract"])
def manager_socket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = f"@dorm-test-{os.getpid()}-{tmp_path.name}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1))
        manager.setblocking(False)
        yield manager, name


async def said(manager: socket.socket, line: str) -> list[str]:
    """The lines up to this one."""
    found: list[str] = []
    async with asyncio.timeout(10):
        while line not in found:
            found += (await asyncio.get_running_loop().sock_recv(manager, 4096)).decode().splitlines()
    return found


async def test_a_service_is_ready_and_fed(manager_socket: tuple[socket.socket, str]) -> None:
    manager, name = manager_socket
    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    service = ServiceManager.of_environment(environment)
    assert environment == {"HOME": "/"}  # Containers must not speak for the agent.
    health, holds = Health("dorm 1", "waiting for\nthe log"), asyncio.Event()

    async def check() -> list[Check]:
        return [Check("log", holds.is_set(), "the log answers" if holds.is_set() else "no log")]

    async with notifying(service, health):
        before = await said(manager, "STATUS=waiting for the log")
        assert "EXTEND_TIMEOUT_USEC=60000000" in before
        assert "READY=1" not in before
        await said(manager, "WATCHDOG=1")
        health.watch(check)
        assert "READY=1" not in await said(manager, "STATUS=no log")
        holds.set()
        ready = await said(manager, "STATUS=the log answers")
        assert ready.count("READY=1") == 1
        service.stopping()
        await said(manager, "STOPPING=1")


@pytest.mark.parametrize(
    ("environment", "watchdog_s"),
    [
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000"}, 30.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"}, None),
        ({"NOTIFY_SOCKET": "/x"}, None),
    ],
)
def test_the_watchdog_of_another_process_or_none(environment: dict[str, str], watchdog_s: float | None) -> None:
    assert ServiceManager.of_environment(environment).watchdog_s == watchdog_s


async def test_a_missing_manager_and_a_dead_one(tmp_path: Path) -> None:
    async with notifying(ServiceManager.of_environment({}), Health("dorm 1", "it starts")):
        pass
    gone = ServiceManager(str(tmp_path / "gone"), None)
    for _ in range(2):
        gone.notify("READY=1")  # Raises nothing.
