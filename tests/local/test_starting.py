"""A cluster on this machine says what its start waits for, and which part is missing in the end."""

from __future__ import annotations

import asyncio
import stat
from typing import TYPE_CHECKING

import psutil

import dorm.local.cluster
import dorm.local.nats_server
from dorm.local.cluster import LocalCluster, LocalOptions, Starting, StartTooSlow
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_a_long_start_says_what_it_waits_for_and_a_quick_one_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dorm.local.cluster, "_QUIET_S", 0.05)
    told: list[str] = []
    said = asyncio.Event()

    def tell(text: str) -> None:
        told.append(text)
        said.set()

    starting = Starting(60.0, tell)

    async def work() -> int:
        starting.awaits("the agent of node-2", "/somewhere/agent.log")
        await said.wait()
        return 7

    assert await starting.within(work()) == 7
    assert told[0].startswith("waiting for the agent of node-2 (")
    assert "60 s at most" in told[0]
    assert "/somewhere/agent.log" in told[0]
    told.clear()
    assert await Starting(60.0, tell).within(asyncio.sleep(0, 5)) == 5
    assert told == []


async def test_after_the_limit_the_missing_part_and_its_log_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = Starting(0.05)
    ended = False

    async def work() -> None:
        nonlocal ended
        starting.awaits("a master that leads", "/somewhere/master.log")
        try:
            await asyncio.Event().wait()
        finally:
            ended = True

    with raises(StartTooSlow, "start.too_slow", "a master that leads is missing; see /somewhere/master.log"):
        await starting.within(work())
    assert ended


async def test_what_follows_has_what_is_left_of_the_limit() -> None:
    starting = Starting(0.05)
    with raises(StartTooSlow, "start.too_slow"):
        await starting.within(asyncio.sleep(3600))
    with raises(StartTooSlow, "start.too_slow"):
        await starting.within(asyncio.sleep(3600))


async def test_a_start_that_fails_or_is_cancelled_ends_its_work() -> None:
    async def fails() -> None:
        raise StartTooSlow("another reason", code="other")

    with raises(StartTooSlow, "other"):
        await Starting().within(fails())
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(Starting().within(work()))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert ended.is_set()


async def test_a_server_that_never_listens_is_named_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nats-server"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 3600\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(dorm.local.nats_server, "find_binary", lambda: str(program))
    data = tmp_path / "data"
    starting = Starting(1.0)
    with raises(StartTooSlow, "start.too_slow", str(data / "nats" / "nats.log")):
        await starting.within(LocalCluster(LocalOptions(data=data, server_start_s=60.0), starting).__aenter__())
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
