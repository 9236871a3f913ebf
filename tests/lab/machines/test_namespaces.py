"""Clusters in namespaces behave like machines and cables, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiodocker
import nats
import pytest

from tests.lab.machines.leases import Lease, gone, sweep_stale
from tests.lab.machines.namespaces import NodeCluster
from tests.lab.machines.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.lab.machines.namespaces import Node

    MakeCluster = Callable[..., Awaitable[NodeCluster]]

pytestmark = [pytest.mark.soak, pytest.mark.cluster, pytest.mark.docker]

IMAGE = "dorm/samples:1"
PATIENCE_S = 60.0
LISTEN = "import socket; s = socket.create_server(('', 7000)); print('listening')\nwhile True: s.accept()[0].close()"


async def start(node: Node, *command: str, env: dict[str, str] | None = None) -> str:
    """Start a container with the node's network; return its id."""
    config: dict[str, Any] = {
        "Image": IMAGE,
        "Cmd": list(command),
        "Env": [f"{name}={value}" for name, value in (env or {}).items()],
        "HostConfig": {"NetworkMode": "host", "Init": True, "Tmpfs": {"/checkpoints": ""}},
    }
    async with aiodocker.Docker(url=node.docker_url) as docker, asyncio.timeout(PATIENCE_S):
        container = await docker.containers.create(config)
        await container.start()
        return str(container.id)


async def says(node: Node, container: str, text: str) -> None:
    """Return when the container has printed a text."""
    async with aiodocker.Docker(url=node.docker_url) as docker, asyncio.timeout(PATIENCE_S):
        said = ""
        async for line in docker.containers.container(container).log(stdout=True, stderr=True, follow=True):
            said += line
            if text in said:
                return
    raise AssertionError(f"it ended without {text!r}: {said}")


async def ended(node: Node, container: str) -> tuple[int, str]:
    """Wait until the container has exited; return its code and output."""
    async with aiodocker.Docker(url=node.docker_url) as docker, asyncio.timeout(PATIENCE_S):
        found = docker.containers.container(container)
        status = await found.wait()
        return status["StatusCode"], "".join(await found.log(stdout=True, stderr=True))


async def state(node: Node, container: str) -> dict[str, Any]:
    async with aiodocker.Docker(url=node.docker_url) as docker, asyncio.timeout(PATIENCE_S):
        found: dict[str, Any] = (await docker.containers.container(container).show())["State"]
        return found


async def reaches(node: Node, address: str) -> bool:
    """Return whether a new process on this node can connect to port 7000 at an address."""
    code = f"import socket; socket.create_connection(('{address}', 7000), timeout=0.5)"
    process = await asyncio.create_subprocess_exec(
        *node.enter([sys.executable, "-c", code]), stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait() == 0


async def test_workers_on_three_nodes_train_together(node_cluster: MakeCluster) -> None:
    cluster = await node_cluster(3)
    contract = {
        "DORM_APP": "app-1",
        "DORM_GENERATION": "1",
        "DORM_WORLD_SIZE": "3",
        "DORM_PEERS": ",".join(f"{node.address}:20000" for node in cluster.nodes),
        "DORM_CHECKPOINT_DIR": "/checkpoints",
        "DORM_PROGRESS": "/checkpoints/progress.jsonl",
    }
    command = ["python3", "-m", "compose.apps.logistic", "--steps", "5"]
    workers = [
        await start(node, *command, env={**contract, "DORM_SLOT": str(rank), "DORM_RANK": str(rank)})
        for rank, node in enumerate(cluster.nodes)
    ]
    ends = await asyncio.gather(*map(ended, cluster.nodes, workers))
    assert [code for code, _ in ends] == [0, 0, 0], ends
    assert json.loads(ends[0][1].splitlines()[-1])["result"]["step"] == 5


async def test_a_cut_off_node_reaches_no_other_until_healed(node_cluster: MakeCluster) -> None:
    cluster = await node_cluster(3)
    listeners = [await start(node, "python3", "-c", LISTEN) for node in cluster.nodes]
    await asyncio.gather(*(says(*each, "listening") for each in zip(cluster.nodes, listeners, strict=True)))
    first, second, third = cluster.nodes
    assert await reaches(second, first.address)
    await cluster.cut(0)
    assert not await reaches(second, first.address)
    assert not await reaches(first, second.address)
    assert await reaches(first, first.address)
    assert await reaches(second, third.address)
    assert (await state(first, listeners[0]))["Running"]  # its engine still answers us: we are not on its network
    await cluster.heal(0)
    assert await reaches(second, first.address)
    assert await reaches(first, second.address)


@pytest.mark.parametrize("live_restore", [False, True])
async def test_containers_outlive_their_engine(node_cluster: MakeCluster, live_restore: bool) -> None:
    cluster = await node_cluster(1, live_restore=live_restore)
    (node,) = cluster.nodes
    container = await start(node, "python3", "-c", LISTEN)
    await says(node, container, "listening")
    before = await state(node, container)
    await cluster.kill_engine(0)
    with pytest.raises(aiodocker.DockerError):
        await state(node, container)
    assert not gone(before["Pid"])
    assert await reaches(node, node.address)
    await cluster.start_engine(0)
    after = await state(node, container)
    assert after["Running"] == live_restore
    assert gone(before["Pid"]) != live_restore


async def test_only_the_disk_survives_a_crash(node_cluster: MakeCluster) -> None:
    cluster = await node_cluster(2)
    first, second = cluster.nodes
    containers = [await start(node, "python3", "-c", LISTEN) for node in cluster.nodes]
    await asyncio.gather(*(says(*each, "listening") for each in zip(cluster.nodes, containers, strict=True)))
    agent = await asyncio.create_subprocess_exec(*first.enter(["sleep", "infinity"]))
    pid = (await state(first, containers[0]))["Pid"]
    await cluster.crash(0)
    assert await agent.wait() == -signal.SIGKILL
    assert gone(pid)
    assert (await state(second, containers[1]))["Running"]
    await cluster.start_engine(0)
    found = await state(first, containers[0])
    assert (found["Running"], found["Pid"]) == (False, 0)
    again = await start(first, "sh", "-c", "echo back")
    assert await ended(first, again) == (0, "back\n")


async def test_nats_in_ctl_is_reached_from_nodes_and_from_here(node_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = await node_cluster(1)
    server = NatsServer(tmp_path, host=cluster.ctl.address, port=4222, enter=cluster.ctl.enter)
    await server.start()
    try:
        code = f"import socket; print(socket.create_connection(('{cluster.ctl.address}', 4222)).recv(4).decode())"
        assert await ended(cluster.nodes[0], await start(cluster.nodes[0], "python3", "-c", code)) == (0, "INFO\n")
        async with cluster.ctl.forward(4222) as port:
            client = await nats.connect(f"nats://127.0.0.1:{port}")
            big = os.urandom(5_000_000)
            heard = await client.subscribe("here")
            await client.publish("here", big)
            assert (await heard.next_msg(timeout=PATIENCE_S)).data == big
            await client.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    finally:
        await server.stop()


def left(name: str) -> list[str]:
    """Return everything on this machine with a lease's name, except its guard."""
    found = [str(path) for path in Path("/run/netns").glob(f"{name}*")]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if name in line]
    found += [str(path) for path in (Path("/tmp") / name, Path("/run/lock") / name) if path.exists()]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{name}")]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(name)]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_text().replace("\0", " ")
            if name in command and not gone(int(process.name)):
                found.append(command)
    return found


async def test_down_leaves_nothing(node_cluster: MakeCluster) -> None:
    cluster = await node_cluster(2)
    container = await start(cluster.nodes[0], "sleep", "infinity")
    pid = (await state(cluster.nodes[0], container))["Pid"]
    outside = await asyncio.create_subprocess_exec(*cluster.ctl.enter(["sleep", "infinity"]))
    assert left(cluster.name)
    assert not [name for _, name in socket.if_nameindex() if re.match(r"br0|port-(\d|ctl)", name)]
    await cluster.down()
    assert left(cluster.name) == []
    assert gone(pid)
    assert await outside.wait() == -signal.SIGKILL


async def test_a_failed_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, docker_host: str) -> None:
    names: list[str] = []
    take = Lease.take

    def noted() -> Lease:
        lease = take()
        names.append(lease.name)
        (lease.home / "1").write_text("in the way of the second node's directory")
        return lease

    monkeypatch.setattr(Lease, "take", noted)
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        async with NodeCluster(2):
            pass
    assert left(names[0]) == []


OWNER = """
import asyncio
from tests.lab.machines.namespaces import NodeCluster

async def main():
    async with NodeCluster(1) as cluster:
        print(cluster.name, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def owner() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Start a process with a cluster, like a test run; return it with the cluster's name."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER), cwd=Path(__file__).parents[3], stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def guard_of(name: str) -> int:
    (pid,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.read_bytes().endswith(f"tests.lab.machines.leases\0{name}\0".encode())
    ]
    return pid


async def nothing_left(name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while left(name):  # noqa: ASYNC110  (the guard is nobody's to wait for)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
async def test_a_killed_owner_leaves_nothing(docker_host: str, end: signal.Signals) -> None:
    async with owner() as (process, name):
        assert left(name)
        process.send_signal(end)
        await process.wait()
        await nothing_left(name)


async def test_the_next_run_removes_leases_without_a_holder(docker_host: str) -> None:
    async with owner() as (process, name), owner() as (_, other):
        os.kill(guard_of(name), signal.SIGKILL)
        process.kill()
        await process.wait()
        assert left(name)
        await asyncio.to_thread(sweep_stale)
        assert left(name) == []
        assert left(other)
