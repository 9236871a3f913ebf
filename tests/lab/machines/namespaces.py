"""Several "machines" on one: network namespaces joined by a switch, each with a Docker engine of its own.

    10.77.0.1 … N   nodes; a container with the host's network has its node's address
    10.77.0.254     ctl, where control-plane processes such as a NATS server run

The switch is a bridge in one more namespace.  Nothing is added to the machine's own network, so clusters do not see each
other, and the process that created them does not see their networks: it starts processes inside with `enter`, and reaches
engines by their Unix sockets and ports by `forward`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from tests.lab.machines.dockerd import Dockerd
from tests.lab.machines.leases import Lease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable
    from pathlib import Path

_SUBNET = "10.77.0"
_CLONE_NEWNET = 0x40000000


class Namespace:
    """One network namespace with an address on the switch."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    def enter(self, argv: Iterable[str]) -> list[str]:
        """Return the command line that runs `argv` in this namespace; such processes die with `crash` and at the end."""
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *argv]

    def socket(self) -> socket.socket:
        """Return a TCP socket that belongs to this namespace, in any thread."""

        def make() -> socket.socket:
            with open(f"/run/netns/{self.name}", "rb") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"cannot enter {self.name}")
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

        with ThreadPoolExecutor(1) as thread:  # a thread that ends here, because it stays in the namespace
            return thread.submit(make).result()

    @contextlib.asynccontextmanager
    async def forward(self, port: int, address: str | None = None) -> AsyncIterator[int]:
        """Return a port on this process's own 127.0.0.1 that leads from this namespace to `port` at an address, by default its
        own."""
        to = (address or self.address, port)
        relays: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            relay = asyncio.create_task(self._relay(to, reader, writer))
            relays.add(relay)
            relay.add_done_callback(relays.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for relay in list(relays):
                relay.cancel()
            await asyncio.gather(*relays, return_exceptions=True)

    async def _relay(self, to: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            inner = self.socket()
            try:
                await asyncio.get_running_loop().sock_connect(inner, to)
            except OSError:
                inner.close()  # refused: the outer connection then ends at once, as it would have inside
                return
            except BaseException:
                inner.close()
                raise
            inner_reader, inner_writer = await asyncio.open_connection(sock=inner)
            with contextlib.closing(inner_writer), contextlib.suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, inner_writer))
                    both.create_task(_copy(inner_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


class Node(Namespace):
    """One of the machines."""

    def __init__(self, name: str, address: str, engine: Dockerd) -> None:
        super().__init__(name, address)
        self.engine = engine

    @property
    def docker_url(self) -> str:
        return self.engine.url


class NodeCluster:
    """An asynchronous context manager for `size` machines and a ctl.

    Nodes are counted from 0.  At the end, everything is removed, whatever happened inside; if the owner is killed, its guard
    does that.  `up` raises `EngineFailed` if an engine does not start.
    """

    def __init__(self, size: int, *, live_restore: bool | Collection[int] = False) -> None:
        """`live_restore` of all engines, or the numbers of the nodes whose engines have it."""
        self._size = size
        self._live_restore = live_restore
        self.nodes: list[Node] = []
        self.ctl: Namespace
        self._switch: str
        self._lease: Lease
        self._down = False

    async def __aenter__(self) -> Self:
        # Not in a thread, short as it is: a cancelled wait for a thread would lose the lease.
        self._lease = Lease.take()
        try:
            await self._up()
        except BaseException:
            await self.down()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    @property
    def name(self) -> str:
        """The name of everything that belongs to the cluster."""
        return self._lease.name

    @property
    def home(self) -> Path:
        """The cluster's folder for files that survive power loss; each engine has a folder with its number in it."""
        return self._lease.home

    async def _up(self) -> None:
        name, home = self._lease.name, self._lease.home
        self._switch = f"{name}-switch"
        self.ctl = Namespace(f"{name}-ctl", f"{_SUBNET}.254")
        for i in range(self._size):
            live = self._live_restore if isinstance(self._live_restore, bool) else i in self._live_restore
            engine = Dockerd(home / str(i), f"{name}/{i}", f"{name}-{i}", live_restore=live)
            self.nodes.append(Node(f"{name}-{i}", f"{_SUBNET}.{i + 1}", engine))
        await asyncio.to_thread(self._wire)
        async with asyncio.TaskGroup() as starts:
            for node in self.nodes:
                starts.create_task(node.engine.start())

    def _wire(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        for space in [self.ctl, *self.nodes]:
            port = self._port(space)
            _ip("netns", "add", space.name)
            _ip("-n", space.name, "link", "set", "lo", "up")
            # Both ends are created where they belong, so neither ever appears in the machine's own network.
            veth = ["type", "veth", "peer", "name", port, "netns", self._switch]
            _ip("-n", space.name, "link", "add", "eth0", *veth)
            _ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", space.name, "address", "add", f"{space.address}/24", "dev", "eth0")
            _ip("-n", space.name, "link", "set", "eth0", "up")

    def _port(self, space: Namespace) -> str:
        return f"port-{space.name.rpartition('-')[2]}"

    async def down(self) -> None:
        """Remove everything, and return when it is gone; a second call does nothing."""
        if self._down:
            return
        self._down = True
        try:
            await asyncio.gather(*(node.engine.crash() for node in self.nodes))
        finally:
            self._lease.release()
            await asyncio.to_thread(self._lease.released)

    async def cut(self, i: int) -> None:
        """Take node i off the network.  Its packets vanish silently; its own link stays up, as with a broken switch."""
        await asyncio.to_thread(_ip, "-n", self._switch, "link", "set", self._port(self.nodes[i]), "nomaster")

    async def heal(self, i: int) -> None:
        """Undo `cut`."""
        port = self._port(self.nodes[i])
        await asyncio.to_thread(_ip, "-n", self._switch, "link", "set", port, "master", "br0")

    async def kill_engine(self, i: int) -> None:
        """Send SIGKILL to node i's dockerd; its containers keep running."""
        await self.nodes[i].engine.kill()

    async def start_engine(self, i: int) -> None:
        """Start node i's dockerd again, after `kill_engine` or `crash`, and return when it answers.

        Without `live_restore` it stops the containers that it finds running, as Docker does."""
        await self.nodes[i].engine.start()

    async def crash(self, i: int) -> None:
        """Simulate power loss on node i: engine, containers and all processes in its namespace die at once; its disk
        survives."""
        await self.nodes[i].engine.crash()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stdin=subprocess.DEVNULL)
