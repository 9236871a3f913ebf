"""A sweep in Docker containers: the variables of its apps, and the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.client.sweeps import submit
from dorm.local.cluster import LocalCluster
from events.spec.sweeps import expanded
from tests.e2e.story import IMAGE, until
from tests.e2e.test_one_machine import options

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.core.state import State

PROGRAM = """\
import json, os, sys
words = [os.environ[name] for name in ("DORM_SWEEP", "DORM_ARRAY_INDEX", "DORM_ARRAY_COUNT", "DORM_PARAM_LR")]
assert words == ["lr", sys.argv[2], "4", sys.argv[1]], words
open(os.environ["DORM_PROGRESS"], "a").write(json.dumps({"step": 1, "loss": float(sys.argv[1])}) + "\\n")
"""


@pytest.mark.nats
@pytest.mark.docker
@pytest.mark.soak
async def test_apps_of_a_sweep_find_their_parameters(tmp_path: Path, docker_host: str, docker_image: str) -> None:
    sweep = expanded(
        {
            "name": "lr",
            "image": IMAGE,
            "command": ["python3", "-c", PROGRAM, "{lr}", "{index}"],
            "demand": {"cpu": "250m", "memory": "64MiB"},
            "retries": {"limit": 0},
            "sweep": {"lr": [0.4, 0.3, 0.2, 0.1]},
            "parallel": 1,
        }
    )
    cluster = LocalCluster(options(tmp_path, "docker", docker_host))
    most = 0
    try:
        async with cluster:
            await submit(cluster.client, sweep)

            def all_ended(state: State) -> bool:
                nonlocal most
                apps = list(state.apps.values())
                most = max(most, sum(any(app.running_containers()) for app in apps))
                return len(apps) == 4 and all(app.ended for app in apps)

            state = await until(cluster.client, all_ended, "all have ended", timeout=120)
            assert {app.name: (app.ended, app.loss) for app in state.apps.values()} == {
                f"lr-{index:04}": ("completed", loss) for index, loss in enumerate((0.4, 0.3, 0.2, 0.1))
            }
            assert most == 1
            await cluster.stop_now()
    finally:
        await cluster.remove_containers()
