"""The story on a cluster of one machine, as `dorm up` makes it, in both runtimes; and its ends and new starts."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from dorm.local.cluster import LocalCluster, LocalOptions
from replay.audit.audit import verify
from tests.e2e.ports import own_ports
from tests.e2e.story import check_log, shrink_and_complete, spec, until

if TYPE_CHECKING:
    from pathlib import Path

    from events.runtimes import WantedRuntime as RuntimeName

pytestmark = [pytest.mark.nats, pytest.mark.slow]
CAPACITY = {"cpu": 1000, "memory": 2**30}


def options(data: Path, runtime: RuntimeName, docker: str | None = None, *, agents: int = 2) -> LocalOptions:
    return LocalOptions(
        data=data,
        cluster=f"t{abs(hash(str(data))) % 10**8}",
        agents=agents,
        capacity=CAPACITY,
        ports=own_ports(),
        runtime=runtime,
        docker_url=docker,
        report_interval_s=0.5,
        progress_interval_s=0.2,
    )


async def test_story_in_processes(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path, "process")) as cluster:
        try:
            await shrink_and_complete(cluster.client, tmp_path / "alone", slots=4)
        finally:
            await cluster.stop_now()


@pytest.mark.docker
@pytest.mark.soak
async def test_story_in_docker(tmp_path: Path, docker_host: str, docker_image: str) -> None:
    cluster = LocalCluster(options(tmp_path, "docker", docker_host))
    try:
        async with cluster:
            await shrink_and_complete(cluster.client, tmp_path / "alone", slots=4)
    finally:
        await cluster.remove_containers()


async def test_a_graceful_stop_saves_checkpoints_and_the_next_start_resumes(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path, "process")) as cluster:
        app = await cluster.client.submit(spec("long", "logistic", 100, n_max=2))
        await until(cluster.client, lambda s: s.apps[app.id].step >= 20, "it trains")
        assert await cluster.stop()
        state = await cluster.client.state()
        saved = state.apps[app.id].checkpoint
        assert saved is not None
        assert saved >= 20
        assert state.apps[app.id].phase == "waiting"
        assert {node.condition for node in state.nodes.values()} == {"left"}
    async with LocalCluster(options(tmp_path, "process")) as cluster:
        state = await until(cluster.client, lambda s: bool(s.apps[app.id].ended), "it goes on and completes")
        ended = state.apps[app.id]
        assert (ended.ended, ended.step, ended.lost_steps) == ("completed", 100, 0)
        await check_log(cluster.client)
        await cluster.stop_now()


@pytest.mark.soak
async def test_stopping_at_once_loses_work_and_no_submission(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path, "process")) as cluster:
        app = await cluster.client.submit(spec("hasty", "logistic", 60, n_max=2))
        await until(cluster.client, lambda s: s.apps[app.id].step >= 5, "it trains")
        await cluster.stop_now()
    async with LocalCluster(options(tmp_path, "process")) as cluster:
        state = await until(cluster.client, lambda s: bool(s.apps[app.id].ended), "it is started again")
        # It has no retries, and needs none: being killed with its cluster is not its failure.
        assert (state.apps[app.id].ended, state.apps[app.id].failures) == ("completed", 0)
        assert (await verify(cluster.client.log)).divergence is None
        await cluster.stop_now()


async def test_a_killed_server_is_back_before_anything_is_lost(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path, "process")) as cluster:
        app = await cluster.client.submit(spec("sturdy", "logistic", 100, n_max=2))
        killed_at = None
        async with asyncio.timeout(60.0), aclosing(cluster.client.watch()) as watching:
            async for state, _ in watching:  # One reader, over the outage.
                step = state.apps[app.id].step
                if killed_at is None and step >= 10:
                    killed_at = step
                    os.kill(int((tmp_path / "nats" / "nats.pid").read_text()), signal.SIGKILL)
                elif killed_at is not None and step > killed_at:
                    break
        after = await cluster.client.submit(spec("after", "logistic", 10, n_max=1))
        state = await until(cluster.client, lambda s: all(a.ended for a in s.apps.values()), "both complete")
        assert {state.apps[name].ended for name in (app.id, after.id)} == {"completed"}
        assert (state.apps[app.id].failures, state.apps[app.id].step) == (0, 100)
        await check_log(cluster.client)
        await cluster.stop_now()
