"""A whole cluster under load on this machine: a real server, a real master process, and many real agents with simulated
containers (`tests.lab.overload.toy_runtime`), each agent with its own connection.

    steady      apps come and go at a constant number, and are resized; reports come at their usual pace
    floods      each for a while, with all of that going on: one node that reports a thousand times a second; tails that ask
                for all and never read; submissions as fast as they can be sent, good ones and bad

The measure of a flood is its effect on others: how long reports of all nodes take, and how long a well-behaved user's
submission waits for its answer, before and during the flood.  Times of answers and decisions are log times, from one clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import psutil

from dorm.bench import BenchError
from dorm.bench.report import Report, this_machine
from dorm.local.home import home
from dorm.local.nats_server import EmbeddedServer
from events.nats.connection import Connection
from tests.lab.overload.figures import Phase, Usage, figures_of
from tests.lab.overload.floods import FLOODS
from tests.lab.overload.toy_agents import READY, Part, Told
from tests.lab.overload.users import Users

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from dorm.bench.report import Progress

CAPACITY = {"cpu": 4000, "memory": 16 * 2**30}
_PER_PROCESS = 250
"""Agents per process: one loop has to serve them all."""
_READY_S = 300.0
_END_S = 60.0
_LOOK_S = 0.5
_ANSWER_S = 120.0
_REACH_S = 150.0
"""For thousands of apps to be accepted."""


class Size(msgspec.Struct, frozen=True):
    """The size of a run."""

    agents: int = 1000
    apps: int = 200
    seconds: float = 60.0
    """Seconds of steady load; each flood lasts a third of it."""
    report_interval_s: float = 5.0
    flood: int = 20_000
    """Concurrent submissions; 0 for no floods."""


class _Parts(NamedTuple):
    """The running parts."""

    url: str
    server: psutil.Process
    master: psutil.Process
    agents: list[psutil.Process]


async def bench_overload(size: Size, *, tell: Progress) -> Report:
    """Raises BenchError, EmbeddedError and what a log raises.  Nothing of the cluster is left."""
    machine = this_machine()
    name = f"bench-{secrets.token_hex(4)}"
    data = home() / name
    try:
        async with contextlib.AsyncExitStack() as stack:
            server = EmbeddedServer(data / "nats")
            await server.start()
            stack.push_async_callback(server.stop)
            connection = await Connection.open(server.url, name, name="bench", timeout=10.0, create=True)
            stack.push_async_callback(connection.close)
            master = await stack.enter_async_context(_master(server.url, name, data))
            await _led(connection)
            tell(f"{size.agents} agents join")
            began = time.monotonic()
            agents = await stack.enter_async_context(_agents(size, server.url, name, data))
            joined_s = time.monotonic() - began
            pid = int(await asyncio.to_thread((data / "nats" / "nats.pid").read_text))
            parts = _Parts(
                server.url, psutil.Process(pid), psutil.Process(master.pid), [psutil.Process(one.pid) for one in agents]
            )
            phases, usages = await _load(size, connection, name, parts, tell)
            tell("agents end")
            told = await asyncio.gather(*(_told(process) for process in agents))
            tell("reading the log")
            records = [record async for batch in connection.log.read() for record in batch]
    finally:
        await asyncio.to_thread(shutil.rmtree, data, ignore_errors=True)
    return Report(
        bench="overload",
        machine=machine,
        settings={**msgspec.to_builtins(size), "node_capacity": CAPACITY, "flood_phases": [one.name for one in phases]},
        figures=figures_of(size.agents, joined_s, phases, usages, told, records),
    )


@contextlib.asynccontextmanager
async def _master(url: str, cluster: str, data: Path) -> AsyncIterator[Process]:
    with (data / "master.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from dorm.cli.main import main; main()", "master", "--url", url, "--cluster", cluster,
            "--key", str(data / "key"), stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        await _end(process)


async def _led(connection: Connection) -> None:
    """Return once a master leads.  Agents that join before follow its rounds at first, which here is hundreds of agents on one
    core.  Raises BenchError where none does."""
    try:
        async with asyncio.timeout(_READY_S):
            while (held := await connection.leadership.look()) is None or not held.holder:  # noqa: ASYNC110 - a lease says nothing
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise BenchError(f"no master led after {_READY_S:g} s") from None


@contextlib.asynccontextmanager
async def _agents(size: Size, url: str, cluster: str, data: Path) -> AsyncIterator[list[Process]]:
    """Start agents, and return once all have joined.  Raises BenchError if that takes too long."""
    processes: list[Process] = []
    try:
        with (data / "agents.log").open("wb") as log:
            for first in range(0, size.agents, _PER_PROCESS):
                count = min(_PER_PROCESS, size.agents - first)
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "tests.lab.overload.toy_agents",
                    stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True, limit=1 << 28,
                )  # fmt: skip
                processes.append(process)
                assert process.stdin is not None
                part = Part(url, cluster, first, count, CAPACITY, size.report_interval_s, str(data / "checkpoints"))
                process.stdin.write(msgspec.json.encode(part) + b"\n")
        async with asyncio.timeout(_READY_S):
            for process in processes:
                assert process.stdout is not None
                if (line := await process.stdout.readline()).strip() != READY.encode():
                    words = (data / "agents.log").read_text(errors="replace")[-500:]
                    raise BenchError(f"a process of agents ended: {line!r} {words}")
        yield processes
    except TimeoutError:
        raise BenchError(f"not all agents had joined after {_READY_S:g} s") from None
    finally:
        await asyncio.gather(*map(_end, processes))


async def _told(process: Process) -> Told:
    """End a process of agents, and return its report."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    async with asyncio.timeout(_END_S):
        return msgspec.json.decode(await process.stdout.readline(), type=Told)


async def _end(process: Process) -> None:
    if process.returncode is None:
        if process.stdin is None:
            process.terminate()
        else:
            process.stdin.close()  # So that it removes its files first.
        try:
            await asyncio.wait_for(process.wait(), 10.0)
        except TimeoutError:
            process.kill()
            await process.wait()


# --- load ---------------------------------------------------------------------------------------------------------------


async def _load(
    size: Size, connection: Connection, cluster: str, parts: _Parts, tell: Progress
) -> tuple[list[Phase], list[Usage]]:
    """Run one phase after the other; return the processes' use in each."""
    phases: list[Phase] = []
    usages: list[Usage] = []
    async with Users(connection.log, cluster, size.apps) as users:
        tell(f"{size.apps} apps are submitted")
        await users.settle(timeout=_ANSWER_S)
        await users.reach(timeout=_REACH_S)
        await _phase("steady", size.seconds, users, parts, phases, usages, tell)
        for name in FLOODS if size.flood else ():
            async with _flood(name, parts.url, cluster, size.flood):
                seconds = max(size.seconds / 3, 1.5 * size.report_interval_s)
                await _phase(name, seconds, users, parts, phases, usages, tell)
            await users.settle(timeout=_ANSWER_S)
        return phases, usages


@contextlib.asynccontextmanager
async def _flood(name: str, url: str, cluster: str, number: int) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.lab.overload.floods", name, url, cluster, str(number),
        stdout=DEVNULL, stderr=DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield
        if process.returncode is not None:
            raise BenchError(f"the flood of {name} ended by itself, with exit code {process.returncode}")
    finally:
        await _end(process)


async def _phase(
    name: str, seconds: float, users: Users, parts: _Parts, phases: list[Phase], usages: list[Usage], tell: Progress
) -> None:
    tell(f"{name}, {seconds:.0f} s")
    loop = asyncio.get_running_loop()
    meter, log_time = _Meter(parts), time.time_ns()
    began, ends = time.monotonic(), loop.time() + seconds
    users.answers.clear()
    while (left := ends - loop.time()) > 0:
        meter.look()
        await asyncio.sleep(min(left, _LOOK_S))
    usages.append(meter.usage(name, time.monotonic() - began))
    alive = users.alive
    await users.settle(timeout=_ANSWER_S)
    phases.append(Phase(name, began, time.monotonic(), log_time, list(users.answers), alive))


class _Meter:
    """Measures the processes' use of processors and memory from now on."""

    def __init__(self, parts: _Parts) -> None:
        self._server, self._master, self._agents = parts.server, parts.master, parts.agents
        self._before = self._cpu()
        self._server_rss = self._master_rss = 0

    def _cpu(self) -> tuple[float, float, float]:
        return _cpu(self._server), _cpu(self._master), sum(map(_cpu, self._agents))

    def look(self) -> None:
        """Raises BenchError if one has ended."""
        try:
            self._server_rss = max(self._server_rss, self._server.memory_info().rss)
            self._master_rss = max(self._master_rss, self._master.memory_info().rss)
        except psutil.Error as error:
            raise BenchError(f"the server or the master has ended: {error}") from None

    def usage(self, name: str, seconds: float) -> Usage:
        server, master, agents = (
            (after - before) / seconds for before, after in zip(self._before, self._cpu(), strict=True)
        )
        return Usage(name, server, master, agents, self._server_rss, self._master_rss)


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error as error:
        raise BenchError(f"a process of the cluster has ended: {error}") from None
    return float(times.user + times.system)
