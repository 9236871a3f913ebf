"""The faults of `make chaos`: their kinds, their order, and how each is injected.

The schedule follows from the seed alone: every kind comes once in each turn, in a random order, on a random machine, for a
random time.  Each fault has an end: killed processes are restarted, frozen ones continue, a cable is plugged in again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm.bench import BenchError
from tests.lab.chaos.cluster import ENGINE_AWAY, LIVE_RESTORE, MACHINES
from tests.lab.machines.dockerd import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from tests.lab.chaos.cluster import ChaosCluster, Machine
    from tests.lab.machines.namespaces import NodeCluster
    from tests.lab.machines.services import Service


_REST_S = (2.0, 10.0)
_OVERLAPPING = 0.25
_PATIENCE_S = 20.0
_LOOK_AGAIN_S = 0.25
_STARTS = 3
_TOGETHER = "+"
"""Separates the names of targets that are hit at once."""


class Kind(NamedTuple):
    """One kind of fault."""

    says: str
    least_s: float
    most_s: float
    """Its duration."""


KINDS: dict[str, Kind] = {
    "leader_killed": Kind("kill -9 of the master that leads", 0.5, 6.0),
    "follower_killed": Kind("kill -9 of a master that follows", 0.5, 6.0),
    "leader_paused": Kind("SIGSTOP of the master that leads", 3.0, 15.0),
    "agent_killed": Kind("kill -9 of an agent", 0.5, 12.0),
    "agent_paused": Kind("SIGSTOP of an agent, also for longer than its lease", 2.0, 25.0),
    "engine_killed": Kind("kill -9 of a dockerd that stops its containers at its next start", 0.5, 6.0),
    "live_engine_killed": Kind("kill -9 of a dockerd with live-restore", 0.5, 6.0),
    "stream_leader_killed": Kind("kill -9 of the NATS server that leads the log's stream", 0.5, 8.0),
    "stream_follower_killed": Kind("kill -9 of another NATS server", 0.5, 8.0),
    "two_servers_killed": Kind("kill -9 of two of the three NATS servers at once", 0.5, 8.0),
    "all_servers_killed": Kind("kill -9 of all NATS servers at once", 0.5, 8.0),
    "server_paused": Kind("SIGSTOP of a NATS server", 2.0, 10.0),
    "machine_lost": Kind("power loss of a whole machine; its disk stays", 2.0, 25.0),
    "machine_cut": Kind("a machine off the network, and back", 2.0, 30.0),
    "container_removed": Kind("docker rm -f of a container", 0.0, 0.0),
}


class Fault(NamedTuple):
    """One fault of the schedule."""

    kind: str
    draw: int
    """Selects the machine or container to hit, among the possible ones."""
    lasts_s: float
    rest_s: float
    """From its end to the start of the next one; negative if the next one starts before."""


class Injected(msgspec.Struct):
    """An injected fault, with wall-clock times (UTC ns)."""

    kind: str
    at: int
    target: str
    ended_at: int = 0


def schedule(seed: int, kinds: Sequence[str] = tuple(KINDS)) -> Iterator[Fault]:
    """Yield faults without end.  One in four overlaps with the next one."""
    draws = random.Random(seed)
    while True:
        for name in draws.sample(sorted(kinds), len(kinds)):
            kind = KINDS[name]
            lasts, rest = draws.uniform(kind.least_s, kind.most_s), draws.uniform(*_REST_S)
            overlaps = draws.random() < _OVERLAPPING
            yield Fault(name, draws.randrange(1 << 30), lasts, -lasts / 2 if overlaps else rest)


class Attack:
    """Injects faults into one cluster.  `leader` returns the machine of the leading master, according to the log."""

    def __init__(self, cluster: ChaosCluster, leader: Callable[[], int | None]) -> None:
        self.injected: list[Injected] = []
        self._cluster = cluster
        self._leader = leader
        self._broken: set[str] = set()
        """What is broken now: one thing is not broken twice, and on a machine that is down there is nothing to break."""

    async def run(self, faults: Iterable[Fault], told: Callable[[str], None], stop_at: float) -> None:
        """Inject faults until the loop's time is `stop_at` or there are no more; then repair everything."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as lasting:
            for fault in faults:
                if loop.time() >= stop_at:
                    return
                blow = await self._aim(fault, stop_at)
                if blow is None:
                    continue
                told(f"{fault.kind} of {blow.target} for {fault.lasts_s:.1f} s")
                self._broken.add(blow.target)
                lasting.create_task(self._last(fault, blow, stop_at))
                await asyncio.sleep(max(0.0, min(fault.lasts_s + fault.rest_s, stop_at - loop.time())))

    async def _last(self, fault: Fault, blow: _Blow, stop_at: float) -> None:
        done = Injected(fault.kind, time.time_ns(), blow.target)
        self.injected.append(done)
        await blow.begin()
        await asyncio.sleep(max(0.0, min(fault.lasts_s, stop_at - asyncio.get_running_loop().time())))
        await blow.end()
        done.ended_at = time.time_ns()
        self._broken.discard(blow.target)

    async def _aim(self, fault: Fault, stop_at: float) -> _Blow | None:
        """Choose a target; None if there is none for a while."""
        loop = asyncio.get_running_loop()
        patience = min(stop_at, loop.time() + _PATIENCE_S)
        while True:
            blow = await self._aimed(fault)
            if blow is not None or loop.time() >= patience:
                return blow
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _aimed(self, fault: Fault) -> _Blow | None:
        """Choose a target; None if there is none now."""
        machines = self._cluster.machines
        match fault.kind:
            case "leader_killed" | "leader_paused":
                found = self._services(fault, "master", [self._leader()])
            case "follower_killed":
                leader = self._leader()
                found = self._services(fault, "master", [m.number for m in machines if m.number != leader])
            case "agent_killed" | "agent_paused":
                found = self._services(fault, "agent", range(MACHINES))
            case "stream_leader_killed":
                found = self._services(fault, "server", [await self._cluster.stream_leader()])
            case "stream_follower_killed":
                leader = await self._cluster.stream_leader()
                found = self._services(fault, "server", [m.number for m in machines if m.number != leader])
            case "two_servers_killed":
                found = self._servers_at_once(MACHINES - 1)
            case "all_servers_killed":
                found = self._servers_at_once(MACHINES)
            case "server_paused":
                found = self._services(fault, "server", range(MACHINES))
            case "engine_killed":
                found = [self._engine(m) for m in machines if m.number not in LIVE_RESTORE]
            case "live_engine_killed":
                found = [self._engine(m) for m in machines if m.number in LIVE_RESTORE]
            case "machine_lost":
                found = [self._machine(m) for m in machines]
            case "machine_cut":
                found = [self._network(m) for m in machines]
            case "container_removed":
                found = await self._containers()
            case _:
                raise ValueError(f"no such fault: {fault.kind}")
        free = [blow for blow in found if self._can_be_hit(blow.target)]
        return free[fault.draw % len(free)] if free else None

    def _can_be_hit(self, target: str) -> bool:
        broken = [one for some in self._broken for one in some.split(_TOGETHER)]
        return all(self._is_whole(one, broken) for one in target.split(_TOGETHER))

    def _is_whole(self, target: str, broken: Sequence[str]) -> bool:
        whole, number = "machine", target.rpartition("-")[2]
        if target.startswith(whole):
            return not [one for one in broken if one.rpartition("-")[2] == number]
        return target not in broken and f"{whole}-{number}" not in broken

    def _services(self, fault: Fault, kind: str, numbers: Iterable[int | None]) -> list[_Blow]:
        chosen = [self._cluster.machines[number] for number in numbers if number is not None]
        services: list[Service] = [getattr(machine, kind) for machine in chosen]
        paused = fault.kind.endswith("_paused")
        return [_pause(service) if paused else _kill(service) for service in services if service.running]

    def _servers_at_once(self, count: int) -> list[_Blow]:
        """Return each choice of this many servers that can all be hit."""
        services = [machine.server for machine in self._cluster.machines]
        return [
            _kill(*chosen)
            for chosen in itertools.combinations(services, count)
            if all(service.running and self._can_be_hit(service.name) for service in chosen)
        ]

    def _engine(self, machine: Machine) -> _Blow:
        network, number = self._cluster.network, machine.number
        return _Blow(f"engine-{number}", lambda: network.kill_engine(number), lambda: _start_engine(network, number))

    def _network(self, machine: Machine) -> _Blow:
        network, number = self._cluster.network, machine.number
        return _Blow(f"network-{number}", lambda: network.cut(number), lambda: network.heal(number))

    def _machine(self, machine: Machine) -> _Blow:
        async def begin() -> None:
            for service in machine.services:
                service.hold()
            await self._cluster.network.crash(machine.number)

        async def end() -> None:
            for service in machine.services:
                service.allow()  # as at boot: none of them waits for another
            await _start_engine(self._cluster.network, machine.number)

        return _Blow(f"machine-{machine.number}", begin, end)

    async def _containers(self) -> list[_Blow]:
        found: list[_Blow] = []
        for machine in self._cluster.machines:
            if f"engine-{machine.number}" in self._broken or f"machine-{machine.number}" in self._broken:
                continue
            with contextlib.suppress(*ENGINE_AWAY):  # one that is just starting
                found += [_removal(machine, container) for container in await machine.containers_running()]
        return found


class _Blow(NamedTuple):
    """How to break one thing, and how to repair it."""

    target: str
    begin: Callable[[], Awaitable[None]]
    end: Callable[[], Awaitable[None]]


async def _nothing() -> None:
    pass


async def _start_engine(network: NodeCluster, number: int) -> None:
    """Start an engine as a service manager does: again if it did not come up in time.  Raises BenchError if it never does."""
    for _ in range(_STARTS):
        try:
            await network.start_engine(number)
        except EngineFailed as error:
            failed = error
            await network.kill_engine(number)
        else:
            return
    raise BenchError(f"an engine that was killed does not start again: {failed}")


def _kill(*services: Service) -> _Blow:
    """Kill all of them at the same moment, and restart them at the same moment."""

    async def begin() -> None:
        for service in services:
            service.hold()
        for service in services:
            service.kill()

    async def end() -> None:
        for service in services:
            service.allow()

    return _Blow(_TOGETHER.join(service.name for service in services), begin, end)


def _pause(service: Service) -> _Blow:
    async def begin() -> None:
        service.pause()

    async def end() -> None:
        service.resume()

    return _Blow(service.name, begin, end)


def _removal(machine: Machine, container: str) -> _Blow:
    async def begin() -> None:
        with contextlib.suppress(*ENGINE_AWAY):
            await machine.remove_container(container)

    return _Blow(f"container-{container[:12]}-{machine.number}", begin, _nothing)
