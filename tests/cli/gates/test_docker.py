"""Holds and limits on Docker: containers of a held app end, and it resumes from its checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.client import steering
from dorm.local.cluster import LocalCluster
from tests.e2e.story import check_log, spec, until
from tests.e2e.test_one_machine import options

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.docker, pytest.mark.soak]


async def test_a_held_app_gives_its_containers_back_and_one_with_a_limit_saves(
    tmp_path: Path, docker_host: str, docker_image: str
) -> None:
    cluster = LocalCluster(options(tmp_path, "docker", docker_host))
    try:
        async with cluster:
            client = cluster.client
            app = await client.submit(spec("digits", "logistic", 150, n_max=2))
            await until(client, lambda s: s.apps[app.id].step >= 20, "it trains")
            await steering.hold(client, "digits", "a moment")
            state = await until(client, lambda s: s.apps[app.id].phase == "waiting", "it has given its room back")
            saved = state.apps[app.id].checkpoint or 0
            assert saved >= 20
            assert not list(state.apps[app.id].running_containers())
            await steering.release(client, "digits")
            ended = await client.wait(app.id)
            assert (ended.ended, ended.step, ended.lost_steps) == ("completed", 150, 0)
            short = await client.submit({**spec("short", "logistic", 10_000, n_max=2), "max_runtime": "3s"})
            ended = await client.wait(short.id, stopped=True)
            assert (ended.ended, ended.end_code) == ("cancelled", "max_runtime")
            assert ended.checkpoint == ended.step
            await check_log(client)
    finally:
        await cluster.remove_containers()
