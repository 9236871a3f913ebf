"""The story on three machines: three agents, each with a Docker engine of its own in a network namespace, a master and a
NATS server in another, all of them the commands that people run."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from dorm.client.client import Client
from events.nats.connection import Connection
from tests.e2e.commands import running
from tests.e2e.story import shrink_and_complete, until
from tests.lab.machines.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.lab.machines.namespaces import NodeCluster

pytestmark = [pytest.mark.cluster, pytest.mark.docker, pytest.mark.nats, pytest.mark.slow]


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_story_on_three_engines(tmp_path: Path, node_cluster: Callable[[int], Awaitable[NodeCluster]]) -> None:
    machines = await node_cluster(3)
    # Checkpoints are on a folder that all nodes share, as on a network file system; containers run as nobody.
    tmp_path.chmod(0o755)
    checkpoints = tmp_path / "checkpoints"
    server = NatsServer(tmp_path / "nats", host=machines.ctl.address, port=4222, enter=machines.ctl.enter)
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        common = ["--url", server.url, "--cluster", "three"]
        await stack.enter_async_context(
            running(tmp_path / "home", tmp_path / "master.log", "master", *common, enter=machines.ctl.enter)
        )
        for number, node in enumerate(machines.nodes):
            await stack.enter_async_context(
                running(
                    tmp_path / f"home-{number}",
                    tmp_path / f"agent-{number}.log",
                    *["agent", *common, "--name", f"node-{number}", "--address", node.address],
                    *["--capacity", "cpu=1,memory=1GiB", "--runtime", "docker", "--docker", node.docker_url],
                    *["--checkpoints", str(checkpoints), "--data", str(tmp_path / f"data-{number}")],
                    *["--report-every", "0.5"],
                    enter=node.enter,
                )
            )
        port = await stack.enter_async_context(machines.ctl.forward(4222))
        # Before the master has made the cluster, maybe.
        connection = await Connection.open(f"nats://127.0.0.1:{port}", "three", create=True)
        client = await stack.enter_async_context(
            Client(connection.log, connection.bus, "three", user="tester", connection=connection)
        )
        try:
            await until(client, lambda s: len(s.nodes) == 3, "three nodes join", timeout=30.0)
            apps = await shrink_and_complete(client, tmp_path / "alone", slots=6)
        except BaseException:
            for log in sorted(tmp_path.glob("*.log")):
                print(f"--- {log.name}\n{await asyncio.to_thread(log.read_text, errors='replace')}")
            raise
        # Each node had its part: the barrier and the rendezvous crossed machines.
        nodes = {c.node for g in apps["first"].generations.values() for c in g.containers.values()}
        assert nodes == {"node-0", "node-1", "node-2"}
