"""A process with many agents, each with its own connection and toy containers: a part of `make overload`.

python -m tests.lab.overload.toy_agents      reads one line of JSON (`Part`), runs until its standard input ends, prints `Told`
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from agents.agent import Agent
from agents.config import NodeConfig
from events.log.interface import Bus
from events.log.records import LogError
from events.nats.connection import Connection
from events.nats.internals import tap
from tests.lab.overload.toy_runtime import ToyRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from events.log.interface import Answerer
    from events.log.records import Record

READY = "ready"
"""Printed once all agents have joined."""
_CONNECT_S = 60.0
"""A thousand agents connect at once."""
_NOTE_S = 0.5
_AT_ONCE = 50
"""Agents of one process that connect at the same time."""


class Part(msgspec.Struct):
    """The work of one process."""

    url: str
    cluster: str
    first: int
    count: int
    capacity: dict[str, int]
    report_interval_s: float
    checkpoints: str
    """A folder that all processes share."""


class Told(msgspec.Struct):
    """Its final report: when each stored report was sent (monotonic seconds, the same clock in all processes of a machine),
    how long it took, and how many were not stored."""

    reports: list[tuple[float, float]]
    reports_failed: int
    cpu_s: float
    ended: list[str]
    """Agents that ended by themselves, and why."""
    received: list[tuple[float, int]] = []
    """Bytes that all of its connections had received by then (monotonic seconds), twice a second."""


class _Received:
    """Counts the bytes from the server, as they arrive."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._bytes = 0

    def count(self, connection: Connection) -> None:
        """Count the bytes that this connection receives from now on."""

        def note(arrived: int) -> None:
            self._bytes += arrived

        tap(connection._link.client, note)

    async def note(self) -> None:
        while True:
            self._told.received.append((time.monotonic(), self._bytes))
            await asyncio.sleep(_NOTE_S)


class _TimedBus(Bus):
    """A bus that measures how long reports take."""

    def __init__(self, bus: Bus, told: Told) -> None:
        self._bus = bus
        self._told = told

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        began = time.monotonic()
        try:
            await self._bus.publish_report(subject, body, timeout=timeout)
        except LogError:
            self._told.reports_failed += 1
            raise
        self._told.reports.append((began, time.monotonic() - began))

    def reports(self, subject: str) -> AsyncGenerator[Record, None]:
        return self._bus.reports(subject)

    async def last_report(self, subject: str) -> Record | None:
        return await self._bus.last_report(subject)

    def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncGenerator[bytes, None]:
        return self._bus.ask(subject, question, timeout=timeout)

    async def answer(self, subject: str, answerer: Answerer) -> None:
        await self._bus.answer(subject, answerer)


def node_name(index: int) -> str:
    return f"toy-{index:04}"


async def _run(part: Part, root: Path) -> None:
    told = Told([], 0, 0.0, [])
    received = _Received(told)
    noting = asyncio.create_task(received.note())
    connections: list[Connection] = []
    try:
        slots = asyncio.Semaphore(_AT_ONCE)
        agents = await asyncio.gather(
            *(
                _agent(part, index, root, told, slots, connections, received)
                for index in range(part.first, part.first + part.count)
            )
        )
        running = [asyncio.create_task(_lives(agent, told)) for agent in agents]
        joined = asyncio.create_task(_all_joined(agents))
        ended = asyncio.create_task(_input_ended())
        await asyncio.wait({joined, ended}, return_when=asyncio.FIRST_COMPLETED)
        if joined.done():
            print(READY, flush=True)
        joined.cancel()
        await ended
        told.cpu_s = time.process_time()
        print(msgspec.json.encode(told).decode(), flush=True)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    finally:
        noting.cancel()
        await asyncio.gather(*(connection.close() for connection in connections), return_exceptions=True)


async def _all_joined(agents: list[Agent]) -> None:
    for agent in agents:
        await agent.joined.wait()


async def _agent(
    part: Part,
    index: int,
    root: Path,
    told: Told,
    slots: asyncio.Semaphore,
    connections: list[Connection],
    received: _Received,
) -> Agent:
    name = node_name(index)
    async with slots:
        connection = await Connection.open(part.url, part.cluster, name=name, timeout=_CONNECT_S)
    connections.append(connection)
    received.count(connection)
    config = NodeConfig(
        name=name,
        address=f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}",
        capacity=part.capacity,
        checkpoints=Path(part.checkpoints),
        report_interval_s=part.report_interval_s,
    )
    home = root / name
    return Agent(
        connection.log,
        _TimedBus(connection.bus, told),
        part.cluster,
        config,
        ToyRuntime(home / "run"),
        root=home,
        clock=time.time_ns,
        port_taken=lambda *_: False,
        look_at=None,
    )


async def _lives(agent: Agent, told: Told) -> None:
    try:
        await agent.run()
    except Exception as error:
        told.ended.append(f"{agent.config.name}: {error!r}"[:300])


async def _input_ended() -> None:
    """Return when the parent closes the pipe, or ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1 << 16):
        pass


def main() -> None:
    part = msgspec.json.decode(sys.stdin.readline(), type=Part)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="dorm-toys-", dir=shared if shared.is_dir() else None) as folder:
        asyncio.run(_run(part, Path(folder)))


if __name__ == "__main__":
    main()
