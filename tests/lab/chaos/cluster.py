"""The cluster that `make chaos` attacks: three machines in network namespaces, each with a Docker engine, a NATS server, a
master and an agent, started by the usual commands; the log is on all three servers.

Clients are outside, at the switch.  Every process is restarted when it ends, as by a service manager.  The files of all
machines are in one folder in memory, which outlives the processes; containers share the folder of checkpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiodocker
import aiohttp

import dorm
from agents.runtime.docker.config import LABEL_CLUSTER
from compose.engine import Engine, EngineFault
from compose.image import ImageUnavailable, ensure_samples_image
from dorm.bench import BenchError
from dorm.client.client import Client
from dorm.master.sealing import open_key
from events.log.records import LogError
from events.nats.connection import Connection
from events.nats.streams import log_stream
from tests.lab.machines.dockerd import EngineFailed, why_not
from tests.lab.machines.namespaces import NodeCluster
from tests.lab.machines.services import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.bench.report import Progress
    from events.kinds import PolicyChanged
    from tests.lab.machines.namespaces import Node

NAME = "chaos"
MACHINES = 3
CAPACITY = "cpu=1,memory=1GiB"
MASTER_LEASE_S = 8.0
"""Longer than NATS needs to elect another leader of a stream, so that this deposes no healthy master."""
LIVE_RESTORE = frozenset({0})
"""Machines whose engine leaves its containers running while it is down."""
_NATS, _ROUTES, _MONITOR = 4222, 6222, 8222
_START_S = 90.0
_ASK_S = 2.0
_ENGINE_S = 20.0
ENGINE_AWAY = (aiodocker.DockerError, aiohttp.ClientError, TimeoutError)
"""Errors of requests to an engine that is down."""
_ENDS = '"level": "critical"'
"""The last line of a service that ends by itself contains this, with the reason (`dorm.cli.program_logs`)."""
_DAMAGED = ('"event": "the log ends', '"event": "the log begins', '"event": "the log is not', '"event": "stream ')


class Machine:
    """One machine: its engine and its services."""

    def __init__(self, number: int, node: Node, server: Service, master: Service, agent: Service) -> None:
        self.number = number
        self.node = node
        self.server = server
        self.master = master
        self.agent = agent
        self.on = True

    @property
    def services(self) -> tuple[Service, ...]:
        return self.server, self.master, self.agent

    async def containers_running(self) -> list[str]:
        """Return the ids of this cluster's containers on this engine, sorted.  Raises one of `ENGINE_AWAY`."""
        filters = {"label": [f"{LABEL_CLUSTER}={NAME}"], "status": ["running"]}
        async with aiodocker.Docker(self.node.docker_url) as docker, asyncio.timeout(_ENGINE_S):
            return sorted(container.id for container in await docker.containers.list(filters=filters))

    async def remove_container(self, container: str) -> None:
        """Do `docker rm -f`.  Raises one of `ENGINE_AWAY`."""
        async with aiodocker.Docker(self.node.docker_url) as docker, asyncio.timeout(_ENGINE_S):
            await docker.containers.container(container).delete(force=True)


class ChaosCluster:
    """An asynchronous context manager that leaves nothing behind, even after an error.

    Raises BenchError if this machine can't hold one."""

    def __init__(self, settings: PolicyChanged, tell: Progress) -> None:
        self._settings = settings
        self._tell = tell
        self._stack = contextlib.AsyncExitStack()
        self.machines: list[Machine] = []
        self.client: Client
        self.network: NodeCluster
        self._monitors: list[int] = []

    async def __aenter__(self) -> ChaosCluster:
        if reason := why_not():
            raise BenchError(f"no machines can be made here: {reason}")
        try:
            await self._up()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, which has a folder for each app, named by its id."""
        return self.network.home / "checkpoints"

    async def _up(self) -> None:
        self._tell("starting three engines")
        try:
            self.network = await self._stack.enter_async_context(NodeCluster(MACHINES, live_restore=LIVE_RESTORE))
            await self._load_image()
        except* (EngineFailed, EngineFault, ImageUnavailable) as group:
            raise BenchError(f"the engines can't be started: {group.exceptions[0]}") from None
        self.checkpoints.mkdir()
        self.checkpoints.chmod(0o755)
        for number, node in enumerate(self.network.nodes):
            self.machines.append(await asyncio.to_thread(self._machine, number, node))
        tasks = await self._stack.enter_async_context(_cancelled_at_the_end())
        for machine in self.machines:
            for service in machine.services:
                tasks.append(asyncio.create_task(service.run(), name=service.name))
        await self._connect()

    async def _load_image(self) -> None:
        nodes = self.network.nodes
        built = await ensure_samples_image(nodes[0].docker_url, progress=self._tell)
        archive = built.archive
        if archive is None:
            archive = self.network.home / "samples.tar"
            async with Engine(nodes[0].docker_url) as engine:
                await engine.save(built.ref, archive)

        async def load(node: Node) -> None:
            async with Engine(node.docker_url) as engine:
                await engine.load(archive)

        async with asyncio.TaskGroup() as loads:
            for node in nodes[1:]:
                loads.create_task(load(node))

    def _machine(self, number: int, node: Node) -> Machine:
        folder = self._folder(number)
        folder.mkdir()
        nodes = self.network.nodes
        # Its own server first, then the others, because any of them works.
        url = ",".join(f"nats://{other.address}:{_NATS}" for other in [*nodes[number:], *nodes[:number]])
        common = ["--url", url, "--cluster", NAME, "--log-json"]
        key = folder / "master.nk"
        open_key(key)
        master = ["master", *common, "--name", f"master-{number}", "--lease", str(MASTER_LEASE_S), "--key", str(key)]
        agent = [
            *("agent", *common, "--name", f"node-{number}", "--address", node.address, "--capacity", CAPACITY),
            *("--runtime", "docker", "--docker", node.docker_url, "--report-every", "0.5"),
            *("--checkpoints", str(self.checkpoints), "--data", str(folder / "agent")),
        ]
        environment = _environment(folder)

        def service(kind: str, command: list[str]) -> Service:
            return Service(f"{kind}-{number}", node.enter(command), folder / f"{kind}.log", environment)

        return Machine(
            number,
            node,
            service("nats", self._nats_command(number, folder)),
            service("master", [*_DORM, *master]),
            service("agent", [*_DORM, *agent]),
        )

    def _nats_command(self, number: int, folder: Path) -> list[str]:
        nodes = self.network.nodes
        host = nodes[number].address
        config: dict[str, Any] = {
            "server_name": f"nats-{number}",
            "host": host,
            "port": _NATS,
            "http": f"{host}:{_MONITOR}",
            "max_payload": 8 << 20,
            "jetstream": {"store_dir": str(folder / "nats"), "sync_interval": "always"},
            "cluster": {
                "name": NAME,
                "host": host,
                "port": _ROUTES,
                "routes": [f"nats://{node.address}:{_ROUTES}" for node in nodes],
                "no_advertise": True,  # clients outside use other addresses than the servers inside
            },
        }
        file = folder / "nats.conf"
        file.write_text(json.dumps(config))
        return [str(Path(sys.executable).with_name("nats-server")), "--config", str(file)]

    async def _connect(self) -> None:
        ctl, nodes = self.network.ctl, self.network.nodes
        ports = [await self._stack.enter_async_context(ctl.forward(_NATS, node.address)) for node in nodes]
        self._monitors = [await self._stack.enter_async_context(ctl.forward(_MONITOR, node.address)) for node in nodes]
        self._tell("waiting for the masters and agents")
        try:
            async with asyncio.timeout(_START_S):
                url = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
                connection = await _connection(url)
                self.client = await self._stack.enter_async_context(
                    Client(connection.log, connection.bus, NAME, user="chaos", connection=connection)
                )
                await self.client.change_policy(self._settings)
                async for state, _ in self.client.watch():
                    if state.epoch and len(state.nodes) == MACHINES:
                        return
        except TimeoutError:
            raise BenchError(f"the cluster did not start within {_START_S:g} s; {self._last_words()}") from None

    def _last_words(self) -> str:
        said = []
        for service in self.services:
            with contextlib.suppress(OSError, IndexError):
                said.append(f"{service.name}: {service.output.read_text(errors='replace').splitlines()[-1][:200]}")
        return "; ".join(said)

    async def stream_leader(self) -> int | None:
        """Return the machine whose NATS server leads the log's stream; None if no server leads."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_S)) as session:
            for port in self._monitors:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError):
                    async with session.get(f"http://127.0.0.1:{port}/jsz?streams=true") as answer:
                        leader = _leader_in(await answer.json(), log_stream(NAME))
                        if leader is not None:
                            return int(leader.removeprefix("nats-"))
        return None

    @property
    def copies(self) -> dict[str, Path]:
        """Return the folder of each NATS server's copy of the log, by the server's name."""
        stream = f"jetstream/$G/streams/{log_stream(NAME)}"
        return {f"nats-{one.number}": self._folder(one.number) / "nats" / stream for one in self.machines}

    def _folder(self, number: int) -> Path:
        """Return the folder of a machine's files."""
        return self.network.home / f"machine-{number}"

    async def containers_running(self) -> int:
        """Return the ids of this cluster's containers on all engines."""
        return sum([len(await machine.containers_running()) for machine in self.machines])

    @property
    def services(self) -> list[Service]:
        """Return the services on all machines."""
        return [service for machine in self.machines for service in machine.services]

    def false_alarms(self) -> list[str]:
        """Return output of services that no fault explains: tracebacks, and claims that the log is damaged."""
        found = []
        for one in self.services:
            said = one.output.read_text(errors="replace").splitlines() if one.output.exists() else []
            found += [f"{one.name} printed a traceback" for line in said if line.startswith("Traceback")]
            ends = [line for line in said if _ENDS in line]
            found += [f"{one.name} ended by a bug: {line}" for line in ends if '"exception"' in line]
            found += [f"{one.name} said: {line}" for line in ends if any(words in line for words in _DAMAGED)]
        return found

    async def save_output(self, folder: Path) -> None:
        """Save the output of every process and every engine as files in a folder."""
        await asyncio.to_thread(self._save_output, folder)

    def _save_output(self, folder: Path) -> None:
        for machine in self.machines:
            for service in machine.services:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(service.output, folder / f"{service.name}.log")
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(machine.node.engine.home / "log", folder / f"dockerd-{machine.number}.log")


_DORM = [sys.executable, "-c", "from dorm.cli.main import main; main()"]


def _environment(folder: Path) -> dict[str, str]:
    """Return this process's environment, without variables of another cluster on this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DORM_", "DOCKER_"))}
    return {**kept, "DORM_HOME": str(folder), "PYTHONPATH": str(Path(dorm.__file__).parents[1])}


@contextlib.asynccontextmanager
async def _cancelled_at_the_end() -> AsyncIterator[list[asyncio.Task[Any]]]:
    tasks: list[asyncio.Task[Any]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _connection(url: str) -> Connection:
    """Connect as soon as the servers form a cluster."""
    while True:
        try:
            return await Connection.open(url, NAME, name="dorm-chaos", create=True)
        except LogError:
            await asyncio.sleep(0.2)


def _leader_in(found: Any, stream: str) -> str | None:
    """Return the leader in a NATS server's /jsz."""
    for account in found.get("account_details", []):
        for one in account.get("stream_detail", []):
            if one["name"] == stream:
                leader = one.get("cluster", {}).get("leader")
                return str(leader) if leader else None
    return None
