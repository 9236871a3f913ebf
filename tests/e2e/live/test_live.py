"""Live resizing on a real cluster: an app grows and shrinks while it runs, loses a member, and is restarted if it must be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dorm.local.cluster import LocalCluster, LocalOptions
from events import kinds as k
from tests.e2e.ports import own_ports
from tests.e2e.story import check_log, until

if TYPE_CHECKING:
    from dorm.client.client import Client
    from dorm.core.state import App

pytestmark = [pytest.mark.nats, pytest.mark.slow]
MEMBER = Path(__file__).with_name("member.py")


def options(data: Path) -> LocalOptions:
    return LocalOptions(
        data=data,
        cluster=f"t{abs(hash(str(data))) % 10**8}",
        agents=3,
        ports=own_ports(),
        capacity={"cpu": 1000, "memory": 2**30},
        runtime="process",
        report_interval_s=0.5,
        progress_interval_s=0.2,
    )


def live(name: str, way: str = "follows", *, steps: int = 100_000, **words: Any) -> dict[str, Any]:
    return {
        "name": name,
        "command": [sys.executable, str(MEMBER), way, str(steps)],
        "demand": {"cpu": 1},
        "n_max": 3,
        "elastic": "live",
        "retries": {"limit": 3, "backoff": "0s"},
        **words,
    }


def neighbor() -> dict[str, Any]:
    return {"name": "neighbor", "command": ["sleep", "600"], "demand": {"cpu": 1}}


def members(app: App) -> list[int]:
    return sorted(app.generations[app.generation].containers)


async def all_nodes(client: Client) -> None:
    """Wait for the nodes: an app that starts with fewer is adjusted before its first members train, by a restart."""
    await until(client, lambda s: len(s.nodes) == 3, "all nodes have joined")


async def facts(client: Client) -> list[Any]:
    return [logged.event async for logged in client.events(follow=False)]


async def test_an_app_shrinks_and_grows_while_it_trains(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path)) as cluster:
        client = cluster.client
        await all_nodes(client)
        app = await client.submit(live("elastic"))
        await until(client, lambda s: s.apps[app.id].step >= 10, "it trains")
        other = await client.submit(neighbor())
        state = await until(
            client,
            lambda s: s.apps[other.id].phase == "running" and s.apps[app.id].adjustments > 0,
            "it makes room",
        )
        kept = members(state.apps[app.id])
        assert len(kept) == 2
        shrunk = state.apps[app.id].history[-1]
        assert (shrunk.live, shrunk.containers_before, shrunk.containers_after) == (True, 3, 2)
        assert shrunk.pause_s == 0.004
        step = state.apps[app.id].step
        await client.cancel(other.id)
        state = await until(client, lambda s: len(members(s.apps[app.id])) == 3, "it grows again")
        assert members(state.apps[app.id]) == [*kept, 3], "a newcomer has a slot of its own"
        await until(client, lambda s: s.apps[app.id].step > step + 20 and s.apps[app.id].epoch > 0, "it trains on")
        ended = (await client.state()).apps[app.id]
        assert (ended.generation, ended.failures, ended.lost_steps) == (1, 0, 0), "and was never restarted"
        events = await facts(client)
        exits = [one for one in events if isinstance(one, k.ContainerExited) and one.app == app.id]
        # On a busy machine its agent may ask it to stop before it has ended by itself.
        assert [one.exit_code for one in exits] == [0], "only the member that left has ended, and in good order"
        await check_log(client)
        await cluster.stop_now()


async def test_it_continues_without_a_killed_member(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path)) as cluster:
        client = cluster.client
        await all_nodes(client)
        app = await client.submit(live("mourner"))
        await until(client, lambda s: s.apps[app.id].step >= 10, "it trains")
        (pid,) = tmp_path.rglob("peers-1/0.pid")
        os.kill(json.loads(pid.read_text()), signal.SIGKILL)
        state = await until(client, lambda s: members(s.apps[app.id]) == [1, 2, 3], "another member joins")
        assert (state.apps[app.id].generation, state.apps[app.id].failures) == (1, 1)
        step = state.apps[app.id].step
        await until(client, lambda s: s.apps[app.id].step > step + 20, "it trains on")
        lost = [fact for fact in await facts(client) if isinstance(fact, k.MembersLost)]
        assert [(fact.lost, fact.counted, fact.failure) for fact in lost] in (
            [([0], True, "exit")],
            [([0], True, "stalled")],
        )
        await check_log(client)
        await cluster.stop_now()


async def test_an_app_that_does_not_follow_is_restarted(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path)) as cluster:
        client = cluster.client
        await client.change_policy(k.PolicyChanged(heartbeat_s=0.5, node_grace_s=2))
        await all_nodes(client)
        app = await client.submit(live("rigid", "ignores", deadlines={"live": "1s"}))
        await until(client, lambda s: s.apps[app.id].step >= 10, "it trains")
        other = await client.submit(neighbor())
        state = await until(client, lambda s: s.apps[other.id].phase == "running", "it makes room")
        found = state.apps[app.id]
        # With so short a grace time a busy machine may lose a node for a moment, which costs a generation more.
        assert found.generation >= 2
        assert (len(members(found)), found.failures) == (2, 0)
        saved = found.checkpoint or 0
        assert saved >= 10
        await until(client, lambda s: s.apps[app.id].step > saved, "it goes on from its checkpoint")
        events = await facts(client)
        failed = [fact for fact in events if isinstance(fact, k.LiveResizeFailed)]
        assert "within 1s of its announcement" in failed[0].reason
        await check_log(client)
        await cluster.stop_now()


async def test_it_completes_when_all_its_members_are_done(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path)) as cluster:
        await all_nodes(cluster.client)
        app = await cluster.client.submit(live("short", steps=150))
        await cluster.client.submit(neighbor())
        state = await until(cluster.client, lambda s: bool(s.apps[app.id].ended), "it completes")
        assert (state.apps[app.id].ended, state.apps[app.id].generation) == ("completed", 1)
        await check_log(cluster.client)
        await cluster.stop_now()


async def test_it_completes_while_a_newcomer_waits_to_join(tmp_path: Path) -> None:
    """No member is left to receive the newcomer, and it does not end by itself."""
    async with LocalCluster(options(tmp_path)) as cluster:
        client = cluster.client
        await all_nodes(client)
        other = await client.submit(neighbor())
        await until(client, lambda s: s.apps[other.id].phase == "running", "the neighbor runs")
        app = await client.submit(live("brief", "ignores", steps=400, deadlines={"live": "10m"}))
        await until(client, lambda s: s.apps[app.id].step >= 10, "it trains")
        await client.cancel(other.id)
        state = await until(client, lambda s: bool(s.apps[app.id].ended), "it completes")
        assert (state.apps[app.id].ended, state.apps[app.id].generation) == ("completed", 1)
        started = [
            fact.slot for fact in await facts(client) if isinstance(fact, k.ContainerStarted) and fact.app == app.id
        ]
        assert sorted(started) == [0, 1, 2]
        exits: dict[int, bool | None] = {}
        async with asyncio.timeout(30), contextlib.aclosing(client.events(follow=True)) as events:
            async for logged in events:
                if isinstance(logged.event, k.ContainerExited) and logged.event.app == app.id:
                    exits[logged.event.slot] = logged.event.asked
                if len(exits) == 3:
                    break
        assert exits == {0: False, 1: False, 2: True}
        await check_log(client)
        await cluster.stop_now()
