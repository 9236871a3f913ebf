"""An app whose servers never end by themselves is complete when its chief is, in both runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dorm.local.cluster import LocalCluster
from tests.e2e.story import IMAGE, until
from tests.e2e.test_one_machine import options

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.client.client import Client

pytestmark = [pytest.mark.nats, pytest.mark.slow]
PROGRAM = """\
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
host, port = config["cluster"][kind][index].rsplit(":", 1)
try:
    server = socket.create_server((host, int(port)))
except OSError as error:
    raise SystemExit(error.errno)  # 98 where the port is taken, which is no failure of the app
others = [task.rsplit(":", 1) for tasks in config["cluster"].values() for task in tasks]
for other_host, other_port in others:
    while True:
        try:
            socket.create_connection((other_host, int(other_port))).close()
            break
        except OSError:
            time.sleep(0.05)
print(kind, index, "reaches", len(others), flush=True)
time.sleep(0.5 if kind == "chief" else 3600)
"""


def spec() -> dict[str, Any]:
    return {
        "name": "served",
        "image": IMAGE,
        "engine": "tensorflow",
        "engine_options": {"servers": 1},
        "command": ["python3", "-c", PROGRAM],
        "demand": {"cpu": "500m", "memory": "128MiB"},
        "n_min": 4,
        "retries": {"limit": 0},
    }


async def completes(client: Client) -> None:
    app = await client.submit(spec())
    state = await until(client, lambda s: bool(s.apps[app.id].ended), "it ends", timeout=90.0)
    ended = state.apps[app.id]
    assert (ended.ended, ended.end_reason) == ("completed", "")


async def test_servers_end_with_the_chief_in_processes(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path, "process")) as cluster:
        try:
            await completes(cluster.client)
        finally:
            await cluster.stop_now()


@pytest.mark.docker
async def test_servers_end_with_the_chief_in_docker(tmp_path: Path, docker_host: str, docker_image: str) -> None:
    cluster = LocalCluster(options(tmp_path, "docker", docker_host))
    try:
        async with cluster:
            await completes(cluster.client)
    finally:
        await cluster.remove_containers()
