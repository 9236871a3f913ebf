"""Real NATS servers, one or a cluster of three, which tests may kill, freeze and restart."""
# ruff: noqa: ASYNC110 - only the servers know when they are ready, and they have to be asked

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import nats
import nats.errors

from tests.lab.machines.ports import free_port, free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from nats.aio.client import Client
    from nats.js import JetStreamContext

_READY_S = 20.0
_POLL_S = 0.01
_NO_LIMIT = 2**50


class NatsServerFailed(Exception):
    """The server ended, or was not ready in time; the message has the end of its log."""


class NatsServer:
    """One server with JetStream; its data and log lie in `home`, and it is at the same URL after each start.

    `enter` may change its command line to run it elsewhere, such as `Namespace.enter`; `host` is then an address there.
    Without a port it takes a free one, which it keeps.
    """

    def __init__(
        self,
        home: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        enter: Callable[[Iterable[str]], list[str]] = list,
        name: str = "",
        cluster_port: int = 0,
        routes: Sequence[str] = (),
        store: Path | None = None,
        max_store: int | None = _NO_LIMIT,
        max_payload: int = 8 << 20,
        synced: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`routes`: the cluster addresses (`HOST:PORT`) of all servers of a cluster, if it is one of several; it then
        listens for the others at `cluster_port`.  `store`: its data folder, if not `home`; `max_store`: the largest size of
        the data in bytes: by default enough for
        the streams of all clusters of a run, with None three quarters of the disk; `max_payload`: the largest message that it
        accepts; `synced`: each message is on the disk before it is acknowledged; `settings`: more of its configuration."""
        self.home = home
        self.name = name
        self._host = host
        self._port = port if port is not None else free_port()
        self._enter = enter
        self._cluster_port = cluster_port
        self._routes = routes
        self._store = store or home / "data"
        self._max_store = max_store
        self._max_payload = max_payload
        self._synced = synced
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{self._host}:{self._port}"

    async def start(self) -> None:
        """Start it on its existing data, and return when it is ready.  Raises `NatsServerFailed`.

        Call it from a thread that outlives the server, such as the main thread."""
        self._spawn()
        try:
            async with asyncio.timeout(_READY_S):
                while (ports := self._ports()) is None:
                    assert self._process is not None
                    if self._process.poll() is not None:
                        raise NatsServerFailed(f"nats-server ended: {self._last_words()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            await self.kill()
            raise NatsServerFailed(f"nats-server is not ready: {self._last_words()}") from None
        except BaseException:
            await self.kill()
            raise
        self._port = urlsplit(ports["nats"][0]).port or self._port

    async def stop(self) -> None:
        """Ask it to end, and return when it has."""
        await self._end(subprocess.Popen.terminate)

    async def kill(self) -> None:
        """Send SIGKILL; acknowledged messages are on the disk."""
        await self._end(subprocess.Popen.kill)

    async def restart(self) -> None:
        """Kill and start it."""
        await self.kill()
        await self.start()

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process is not None else None

    def pause(self) -> None:
        """Send SIGSTOP: its connections stay open, and it is silent until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # On a busy machine, its threads continue for a moment; return once all of them have stopped.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        if self._process is None:
            return
        how(self._process)
        self._process.send_signal(signal.SIGCONT)  # A paused server would not notice the request to end.
        # A wait in a thread ends even if we are cancelled, because the server certainly does.
        await asyncio.to_thread(self._process.wait)
        self._process = None

    def _spawn(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        for stale in self.home.glob("*.ports"):
            stale.unlink()
        config: dict[str, Any] = {
            "host": self._host,
            "port": self._port,
            "max_payload": self._max_payload,
            "ports_file_dir": str(self.home),  # the server writes a file there when it is ready
            "jetstream": {"store_dir": str(self._store), **({"sync_interval": "always"} if self._synced else {})},
        }
        if self._max_store is not None:
            config["jetstream"]["max_file_store"] = self._max_store
        if self._routes:
            config |= {
                "server_name": self.name,
                "cluster": {
                    "name": "tests",
                    "host": self._host,
                    "port": self._cluster_port,
                    "routes": [f"nats://{route}" for route in self._routes],
                },
            }
        (self.home / "server.conf").write_text(json.dumps(config | self._settings))
        server = [str(Path(sys.executable).with_name("nats-server")), "--config", str(self.home / "server.conf")]
        if shutil.which("setpriv"):
            server = ["setpriv", "--pdeathsig", "KILL", *server]  # it does not outlive a test process that is killed
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._enter(server), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _ports(self) -> dict[str, Any] | None:
        for path in self.home.glob("*.ports"):
            with contextlib.suppress(ValueError):  # half written
                ports: dict[str, Any] = json.loads(path.read_text())
                return ports
        return None

    def _last_words(self) -> str:
        return " | ".join((self.home / "log").read_text(errors="replace").splitlines()[-3:])


class NatsCluster:
    """A cluster of servers: each has its own folder in `home`, and may be killed, paused and restarted alone.

    `hosts` are their addresses, and `enters` change their command lines to run there, such as `Namespace.enter`; on one
    address, each uses free ports, otherwise `port` and `cluster_port`.
    """

    def __init__(
        self,
        home: Path,
        *,
        hosts: Sequence[str] = ("127.0.0.1",) * 3,
        enters: Sequence[Callable[[Iterable[str]], list[str]]] = (list,) * 3,
        port: int | None = None,
        cluster_port: int = 6222,
    ) -> None:
        apart = len(set(hosts)) == len(hosts)
        ports = [cluster_port] * len(hosts) if apart else free_ports(len(hosts))
        routes = [f"{host}:{number}" for host, number in zip(hosts, ports, strict=True)]
        self.servers = [
            NatsServer(
                home / f"s{index}",
                host=host,
                port=port,
                enter=enters[index],
                name=f"s{index}",
                cluster_port=ports[index],
                routes=routes,
            )
            for index, host in enumerate(hosts)
        ]

    @property
    def url(self) -> str:
        """The URL of all of them for `Connection.open`; known once they have started."""
        return ",".join(server.url for server in self.servers)

    async def start(self) -> None:
        """Start all, and return when JetStream answers.  Raises `NatsServerFailed`."""
        try:
            for server in self.servers:
                await server.start()
            await self.ready()
        except BaseException:
            await self.stop()
            raise

    async def ready(self) -> None:
        """Return once all have joined, so that a stream can be created on all of them."""
        try:
            async with asyncio.timeout(_READY_S):
                while not await self._hold_a_stream():
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise NatsServerFailed("the servers do not find together in time") from None

    async def _hold_a_stream(self) -> bool:
        async with self.owner() as jetstream:
            with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError):
                await jetstream.add_stream(name="ready", subjects=["ready"], num_replicas=len(self.servers))
                return await jetstream.delete_stream("ready")
            return False

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def leader(self, stream: str) -> NatsServer:
        """Wait until a server leads this stream, and return it."""
        async with asyncio.timeout(_READY_S), self.owner() as jetstream:
            while True:
                with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError):
                    info = await jetstream.stream_info(stream)
                    for server in self.servers:
                        if info.cluster is not None and info.cluster.leader == server.name:
                            return server
                await asyncio.sleep(_POLL_S)

    @contextlib.asynccontextmanager
    async def owner(self) -> AsyncIterator[JetStreamContext]:
        """Return a client with the rights of the servers' owner, which Dorm does not use itself."""
        async with self.client() as client:
            yield client.jetstream(timeout=2)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Return a plain nats-py client, connected to the servers."""

        async def quiet(_: Exception) -> None: ...

        client = await nats.connect(
            self.url.split(","), max_reconnect_attempts=-1, reconnect_time_wait=0, connect_timeout=1, error_cb=quiet
        )
        try:
            yield client
        finally:
            await client.close()
