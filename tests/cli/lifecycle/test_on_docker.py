"""An edit and a restart of an app whose containers an engine runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.client import steering
from dorm.local.cluster import LocalCluster
from tests.e2e.story import spec, until
from tests.e2e.test_one_machine import options

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.nats
@pytest.mark.docker
@pytest.mark.soak
async def test_an_edited_app_continues_with_its_new_environment(
    tmp_path: Path, docker_host: str, docker_image: str
) -> None:
    cluster = LocalCluster(options(tmp_path, "docker", docker_host, agents=1))
    try:
        async with cluster:
            client = cluster.client
            app = await client.submit(spec("edited", "logistic", 20_000, n_max=2))
            await until(client, lambda state: state.apps[app.id].step > 2, "it works")
            after = msgspec.structs.replace((await client.app(app.id)).owners_spec, env={"COLOUR": "blue"})
            edited = await steering.edit(client, app.id, after)
            assert (edited.revision, edited.restart_wanted) == (2, True)
            state = await until(
                client,
                lambda state: state.apps[app.id].generation == 2 and state.apps[app.id].phase == "running",
                "it runs with the edit",
            )
            assert (state.apps[app.id].generations[2].revision, state.apps[app.id].generations[2].resume) == (2, True)
            await steering.restart(client, app.id, fresh=True)
            state = await until(
                client,
                lambda state: state.apps[app.id].generation == 3 and state.apps[app.id].phase == "running",
                "it runs again",
            )
            assert not state.apps[app.id].generations[3].resume
    finally:
        await cluster.remove_containers()
