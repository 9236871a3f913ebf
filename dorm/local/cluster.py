"""A whole cluster on this machine, assembled from its real parts: server, master, agents.

`dorm up`, `dorm demo`, the benches and the end-to-end tests all run this.  Everything except the server and the containers
runs in one process; the parts communicate over the log exactly as they would on different machines.

On a busy machine, each step of the start takes seconds.  The user sees which one it is, and what the limit is; after the
limit, which part is missing and where its log is.

    StartTooSlow    the limit has passed; the message says which part is missing
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import structlog

from agents.agent import Agent
from agents.config import DEFAULT_PORTS, NodeConfig, OfferedVolume
from agents.environment import detect_pythons
from agents.gpus import nvidia_cards
from dorm.client.client import Client, login_name
from dorm.health.status import answering_status
from dorm.history import with_history
from dorm.local.announced import BUILD, plugins
from dorm.local.founding import KEYS, found, make_keys
from dorm.local.home import KEY_NAME, metrics_file, witness_file
from dorm.local.nats_server import START_S, EmbeddedServer
from dorm.local.runtimes import choose_runtime
from dorm.master.computing import LIMIT_S
from dorm.master.master import Master
from dorm.master.sealing import open_key
from dorm.metrics.address import Address
from dorm.plugins.limits import limit_s
from dorm.rotation import service as rotation
from dorm.security.folder import KeyFolder
from dorm.workdir.keeping import keeping_while_leading
from events import subjects
from events.addresses import loopback
from events.errors import DormError
from events.log.records import until_answered
from events.nats.connection import Connection
from events.quantities import GPU
from events.runtimes import WantedRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from agents.machine import Detected
    from agents.runtime.interface import Runtime
    from dorm.master.lease import Apart
    from dorm.metrics.server import SolveTimer
    from dorm.webhooks.deliverer import Deliverer
    from events.log.leadership import Leadership


# --- what the start waits for -----------------------------------------------------------------------------------------

T = TypeVar("T")
START_LIMIT_S = 120.0
_QUIET_S = 5.0
"""Seconds before the first message; the pauses between later ones double."""
MESSAGES = "the messages above (`-v` logs more)"
"""Place to which master and agents of this process log."""


class StartTooSlow(DormError):
    """A part of the cluster did not start in time."""

    code = "start.too_slow"


class Starting:
    """Knows which part is waited for.  `limit_s` are the seconds for all of the start."""

    def __init__(self, limit_s: float = START_LIMIT_S, report: Callable[[str], None] = lambda _: None) -> None:
        """`report` is called with each message."""
        self._limit_s = limit_s
        self._report = report
        self._part, self._log = "the first part", MESSAGES
        self._began: float | None = None

    def awaits(self, part: str, log: object = MESSAGES) -> None:
        """From now on, `part` is waited for; `log` is where it logs."""
        self._part, self._log = part, str(log)

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; it has what is left of the limit.  Raises StartTooSlow, after `work` has ended, and what
        `work` raises."""
        loop = asyncio.get_running_loop()
        self._began = began = loop.time() if self._began is None else self._began
        working = asyncio.ensure_future(work)
        pause = _QUIET_S
        try:
            while True:
                left = began + self._limit_s - loop.time()
                await asyncio.wait([working], timeout=max(0.0, min(pause, left)))
                if working.done():
                    return working.result()
                if left <= pause:
                    part, log = self._part, self._log
                    raise StartTooSlow(
                        f"the cluster did not start within {self._limit_s:g} s: {part} is missing; see {log}, and allow more "
                        "time with --start-limit"
                    )
                waited = f"{loop.time() - began:.0f} s so far, {self._limit_s:g} s at most"
                self._report(f"waiting for {self._part} ({waited}); its log: {self._log}")
                pause *= 2
        finally:
            working.cancel()
            await asyncio.wait([working])


# --- the cluster ------------------------------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)
_CLOSE_S = 10.0


def lease_apart(open_connection: Callable[[], Awaitable[Connection]], leader: Connection) -> Apart:
    """Return what makes a connection of its own for the stand-in of the masters' lease, next to a master's connection."""

    @contextlib.asynccontextmanager
    async def apart() -> AsyncIterator[Leadership]:
        connection = await open_connection()
        try:
            yield connection.leadership.stand_in_for(leader.leadership)
        finally:
            await connection.close()

    return apart


def rotation_in(data: Path) -> rotation.Settings:
    """Return where a cluster on this machine keeps the log's archives, unless another place is named."""
    return rotation.Settings(spool=data / "rotation", place=str(data / "archives"))


class LocalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a local cluster.  `capacity` is what each node has, in base units; None divides this machine evenly."""

    data: Path
    cluster: str = "local"
    port: int = 0
    agents: int = 1
    capacity: dict[str, int] | None = None
    runtime: WantedRuntime = "auto"
    docker_url: str | None = None
    checkpoints: Path | None = None
    key: Path | None = None
    """Key file with which the master seals the log; None keeps it in the data folder."""
    accept_log: bool = False
    """Lead on a log that differs from what this master has seen of it."""
    trust_apps: bool = False
    """Run plain processes of several tenants even if users are known."""
    trust: bool = False
    """Know users and nodes by their keys; existing data stays as it is.  Benches and the demo, which only last minutes, do
    without."""
    metrics: Address | None = None
    """Address that serves the metrics of all parts; None serves none."""
    metrics_else_any_port: bool = False
    webhooks: tuple[str, ...] | None = None
    """Networks in addition to the public ones into which webhooks are delivered; None delivers no webhooks here."""
    rotation: rotation.Settings | None = None
    """Place of the log's archives, and times of its rotation; None puts them into the data folder, on request only."""
    volumes: dict[str, OfferedVolume] = {}
    """Folders of this machine that every node offers, by name."""
    ports: tuple[int, int] = DEFAULT_PORTS
    """Divided among the nodes.  Two clusters on one machine that share ports occasionally conflict."""
    server_start_s: float = START_S
    """Seconds within which the NATS server has to listen."""
    report_interval_s: float = 5.0
    progress_interval_s: float = 1.0


class LocalCluster:
    """Use as an async context manager, and call `stop` (or `stop_now`) before leaving it: containers keep running
    otherwise."""

    def __init__(self, options: LocalOptions, starting: Starting | None = None) -> None:
        """`starting` learns what is waited for."""
        self.options = options
        self._starting = starting or Starting()
        folder = options.data / "nats"
        keys = KeyFolder(folder / KEYS)
        self.keys = keys if options.trust or keys.path.exists() else None
        """The cluster's keys; None for an open one."""
        more = self.keys.server_settings() if self.keys else ""
        self.server = EmbeddedServer(folder, port=options.port, more=more, start_s=options.server_start_s)
        self.admin = (self.keys.admin() if self.keys else "") or subjects.token(login_name())
        """The user who runs this cluster."""
        self.agents: list[Agent] = []
        self.master: Master
        self.client: Client
        self._tenant = ""
        """The admin's tenant, which plain processes serve; "" for an open cluster."""
        self._detected: Detected | None = None
        self.runtime_name = ""
        self.runtime_note = ""
        """Reason for this runtime, as a sentence."""
        self.metrics_url = ""
        self._timer: SolveTimer | None = None
        self._stack = contextlib.AsyncExitStack()
        self._runtimes: list[Runtime] = []
        self._connections: list[Connection] = []
        self._parts: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LocalCluster:
        try:
            await self._start()
        except BaseException:
            await self._tear_down()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tear_down()

    async def _start(self) -> None:
        server_log = self.options.data / "nats" / "nats.log"
        self._starting.awaits("the NATS server", server_log)
        await self._found()
        key_file = self.options.key or (self.keys.seal_key if self.keys else self.options.data / KEY_NAME)
        key = await asyncio.to_thread(open_key, key_file)
        self._starting.awaits("the NATS server's answer to the master", server_log)
        connection = await self._connect("master", "master")
        await until_answered(connection.uncompress, "looking up how the log is stored")
        self.master = Master(
            connection.log,
            connection.bus,
            self.options.cluster,
            name=f"master-{secrets.token_hex(4)}",
            clock=time.time_ns,
            build=BUILD,
            key=key,
            leadership=connection.leadership,
            apart=lease_apart(lambda: self._open("lease", "master"), connection),
            witness=witness_file(key_file),
            accept_log=self.options.accept_log,
            plugins=plugins,
            solve=self._solve(),
            policy_limit_s=limit_s(LIMIT_S),
        )
        self._starting.awaits("what runs containers")
        # An open cluster on loopback believes everyone, so its users are no tenants to keep apart.
        trust_apps = self.options.trust_apps or self.keys is None
        choice = await choose_runtime(
            self.options.runtime, self.options.docker_url, trust_apps=trust_apps, tenant=self._tenant
        )
        self.runtime_name, self.runtime_note = choice.name, choice.note
        if not self.options.capacity:
            self._detected = await asyncio.to_thread(choice.detect)
        for index in range(self.options.agents):
            config = self._node(index)
            runtime = choice.make(config, self.options.cluster, self._node_root(index), self._checkpoints)
            self._runtimes.append(runtime)
            self.agents.append(await self._agent(config, runtime, self._node_root(index)))
        self._starting.awaits("the NATS server's answer to the master's services", server_log)
        answering = answering_status(
            connection.bus,
            self.options.cluster,
            self.master,
            connection.log,
            build=BUILD,
            clock=time.time_ns,
            folders=[self.options.data],
        )
        await self._stack.enter_async_context(answering)
        client = await self._connect("client", self.admin)
        self.client = Client(client.log, client.bus, self.options.cluster, user=self.admin, connection=None)
        self._parts = asyncio.create_task(self._run_parts(), name="cluster")
        settings = self.options.rotation or rotation_in(self.options.data)
        apart = await self._connect("rotation", "master")
        await self._stack.enter_async_context(rotation.rotating_while_leading(self.master, apart, settings, key))
        await self._stack.enter_async_context(keeping_while_leading(self.master, connection.log.files))
        deliverer = await self._deliver_webhooks()
        await self._serve_metrics(key_file, deliverer)
        await self._serve_views(key_file)
        ready = asyncio.create_task(self._ready())
        try:
            await asyncio.wait([self._parts, ready], return_when=asyncio.FIRST_COMPLETED)
            if self._parts.done():
                await self._parts
        finally:
            ready.cancel()

    async def _found(self) -> None:
        """Start the server, of a cluster with identities as its admin."""
        if self.keys is None:
            await self.server.start()
            return
        await self.server.reserve()  # Before its keys are touched: another `dorm up` may run on this folder.
        url, cluster = self.server.url, self.options.cluster
        nodes = [f"node-{index + 1}" for index in range(self.options.agents)]
        admin = await asyncio.to_thread(make_keys, self.keys, cluster, url, self.admin, (), time.time_ns(), nodes)
        await self.server.start()
        self._tenant = await found(self.keys, admin, url, nodes, clock=time.time_ns)

    def _solve(self) -> Callable[..., Any]:
        if self.options.metrics is None:
            return asyncio.to_thread
        from dorm.metrics.server import SolveTimer

        self._timer = SolveTimer()
        return self._timer

    async def _serve_metrics(self, key_file: Path, deliverer: Deliverer | None) -> None:
        if self.options.metrics is None or self._timer is None:
            return
        from dorm.health.checks import Health
        from dorm.health.parts import agents_checks, master_checks
        from dorm.metrics.follower import Follower
        from dorm.metrics.server import MetricsServer, of_agents, of_master, serving

        reader = await self._connect("metrics", "master")
        follower = Follower(reader.log, file=metrics_file(key_file), clock=time.time_ns, room=reader.stream.room)
        sources = [follower.metrics, of_master(self.master, self._timer), of_agents(self.agents)]
        if deliverer is not None:
            sources.append(deliverer.metrics)
        health = Health(BUILD, "the cluster starts")
        health.watch(master_checks(self.master, reader.log), agents_checks(self.agents))
        any_port = self.options.metrics_else_any_port
        server = MetricsServer(self.options.metrics, sources, else_any_port=any_port, health=health)
        await self._stack.enter_async_context(serving(server, follower, self.master.settled))
        self.metrics_url = f"http://{server.address}/metrics"

    async def _serve_views(self, key_file: Path) -> None:
        if self.keys is None:
            return
        from dorm.local.companions import ViewsProcess

        process = ViewsProcess(
            lambda: self.master.state,
            self.server.url,
            self.options.cluster,
            credentials=self.keys.file_of("master"),
            key=key_file,
            log=self.options.data / "views.log",
        )
        await self._stack.enter_async_context(process)

    async def _deliver_webhooks(self) -> Deliverer | None:
        if self.options.webhooks is None:
            return None
        from dorm.webhooks.deliverer import Deliverer
        from dorm.webhooks.keys import FILE_NAME, open_keys
        from dorm.webhooks.sending import parse_networks

        keys = await asyncio.to_thread(open_keys, self.options.data / FILE_NAME, self.options.cluster)
        connection = await self._connect("webhooks", self.admin)
        deliverer = Deliverer(
            connection, keys, who=self.client.user, clock=time.time_ns, allowed=parse_networks(self.options.webhooks)
        )
        delivering = asyncio.create_task(_unless_it_fails(deliverer), name="webhooks")
        self._stack.push_async_callback(_ended, delivering)
        return deliverer

    async def _ready(self) -> None:
        self._starting.awaits("a master that leads")
        await self.master.settled.wait()  # Another master, which has waited for this server to come back, may lead.
        for agent in self.agents:
            self._starting.awaits(f"the agent of {agent.config.name}")
            await agent.joined.wait()

    async def _connect(self, name: str, identity: str) -> Connection:
        connection = await self._open(name, identity)
        self._connections.append(connection)
        return with_history(connection)

    async def _open(self, name: str, identity: str) -> Connection:
        credentials = await asyncio.to_thread(self.keys.credentials, identity) if self.keys is not None else None
        return await Connection.open(
            self.server.url,
            self.options.cluster,
            name=name,
            timeout=10.0,
            create=True,
            patient=True,
            credentials=credentials,
        )

    async def _agent(self, config: NodeConfig, runtime: Runtime, root: Path) -> Agent:
        connection = await self._connect(config.name, config.name)
        return Agent(
            connection.log,
            connection.bus,
            self.options.cluster,
            config,
            runtime,
            root=root,
            clock=time.time_ns,
            build=BUILD,
            cards=nvidia_cards,
            detected=self._detected.text if self._detected is not None else "",
        )

    async def _run_parts(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.server.keep_running(), name="server")
            tasks.create_task(self.master.run(), name="master")
            for agent in self.agents:
                tasks.create_task(agent.run(), name=agent.config.name)

    def _node_root(self, index: int) -> Path:
        return self.options.data / "nodes" / f"node-{index + 1}"

    @property
    def _checkpoints(self) -> Path:
        return self.options.checkpoints or self.options.data / "checkpoints"

    def _node(self, index: int) -> NodeConfig:
        """Return a node's configuration.  Nodes on one machine share its address, so each has its own range of ports; and they
        share its GPUs, so each has its own."""
        low, high = self.options.ports
        share = (high - low + 1) // self.options.agents
        first = low + index * share
        capacity = self.options.capacity or {}
        if self._detected is not None:
            capacity = {name: amount // self.options.agents for name, amount in self._detected.capacity.items()}
        gpus = capacity.get(GPU, 0)
        return NodeConfig(
            name=f"node-{index + 1}",
            address=loopback(),
            capacity=capacity,
            gpus=tuple(str(index * gpus + number) for number in range(gpus)),
            ports=(first, first + share - 1),
            checkpoints=self._checkpoints,
            report_interval_s=self.options.report_interval_s,
            progress_interval_s=self.options.progress_interval_s,
            secrets=self.options.data / "secrets",
            trust_apps=self.options.trust_apps,
            volumes=self.options.volumes,
            pythons=detect_pythons(),
        )

    # --- ends -----------------------------------------------------------------------------------------------------------

    async def failed(self) -> None:
        """Never return; raise the error that ended server, master or agent."""
        assert self._parts is not None
        await asyncio.shield(self._parts)

    async def stop(self, *, timeout: float = 120.0) -> bool:
        """Let every app checkpoint and stop, and record it on the log; the next start resumes them.  Return False if some
        containers did not stop in time: they keep running and are adopted by the next start."""
        if self._parts is None or self._parts.done():
            return False
        left = await asyncio.gather(*(agent.leave(timeout=timeout) for agent in self.agents))
        return all(left)

    async def stop_now(self) -> None:
        """Send SIGKILL to every container, without a checkpoint; acknowledged work is on the log and resumes at the next
        start."""
        await asyncio.gather(*(agent.kill_all() for agent in self.agents), return_exceptions=True)

    async def remove_containers(self) -> None:
        """Kill and delete every container of the nodes, after the end of a cluster that will not be started again; including
        containers that were being created when the agents ended.  Raises RuntimeFault if an engine does not answer."""
        for runtime in self._runtimes:
            await runtime.open()
            try:
                for seen in await runtime.list():
                    await runtime.stop(seen.key, 0.0)
                    await runtime.remove(seen.key)
            finally:
                await runtime.close()

    async def _tear_down(self) -> None:
        """End the server in any case, even if parts hang or this is cancelled."""
        try:
            await self._stack.aclose()
            await self._end_parts()
            await asyncio.wait_for(self._close_connections(), _CLOSE_S)
        except TimeoutError:
            _log.warning("connections did not close in time", seconds=_CLOSE_S)
        finally:
            await self.server.stop()

    async def _end_parts(self) -> None:
        """End the parts.  A part that does not end, because a library swallowed its cancellation, ends with its connection."""
        if self._parts is None:
            return
        self._parts.cancel()
        await asyncio.wait([self._parts], timeout=_CLOSE_S)
        if not self._parts.done():
            _log.warning("master and agents did not end in time", seconds=_CLOSE_S)
        elif not self._parts.cancelled() and self._parts.exception():
            _log.debug("a part had failed", error=repr(self._parts.exception()))

    async def _close_connections(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections), return_exceptions=True)


async def _unless_it_fails(deliverer: Deliverer) -> None:
    """A cluster keeps running without its webhooks."""
    try:
        await deliverer.run()
    except Exception as error:
        _log.error("webhooks are no longer delivered; `dorm webhooks run` starts again", reason=repr(error))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
