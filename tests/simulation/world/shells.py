"""The real master, agent and client, unchanged, each as a process of a simulated host."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agents.agent import Agent
from dorm.client.client import Client
from dorm.master.master import Master
from dorm.rotation.service import rotating
from tests.simulation.world.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from random import Random

    from agents.config import NodeConfig
    from agents.fitness import Found, HealthProgram
    from agents.runtime.interface import Runtime
    from dorm.rotation.service import RotationService
    from tests.simulation.world.connection import Connection
    from tests.simulation.world.process import Host


def _nothing_listens(address: str, port: int) -> bool:
    del address, port
    return False


def _solver(chance: Random) -> Callable[..., Any]:
    """Compute like a thread: it takes a while, and reads the state at any time meanwhile."""

    async def solve(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        takes, looks = chance.choice([0.0, 0.002, 0.02, 0.2, chance.choice([0.2, 2.0])]), chance.random()
        await asyncio.sleep(takes * looks)
        answer = call(*args, **named)
        await asyncio.sleep(takes * (1 - looks))
        return answer

    return solve


class MasterProcess(Process):
    """`master` is set once its first step has run."""

    master: Master


class AgentProcess(Process):
    agent: Agent


class ClientProcess(Process):
    """It does nothing by itself; use `process.spawn(process.client.submit(…))`."""

    client: Client


def start_master(
    host: Host,
    name: str,
    *,
    lease_s: float = 2.0,
    beside: Callable[[Master, Connection, Host], RotationService] | None = None,
    **options: Any,
) -> MasterProcess:
    """`name` must differ for each life.  `options` are further arguments of Master.  `beside` creates the rotation service
    next to it, with its own connection."""

    async def main(process: Process) -> None:
        assert isinstance(process, MasterProcess)
        world = process.world
        connection = world.connect(process)
        process.master = Master(
            connection.log,
            connection.bus,
            world.cluster,
            name=name,
            clock=host.clock,
            leadership=connection.leadership,
            lease_s=lease_s,
            key=world.key,
            witness=host.folder / "witness",
            solve=_solver(world.chance("solver")),
            **options,
        )
        if beside is None:
            await process.master.run()
            return
        async with rotating(beside(process.master, world.connect(process), host)):
            await process.master.run()

    return host.begin(MasterProcess(host, name, main))


def start_agent(
    host: Host,
    name: str,
    config: NodeConfig,
    runtime: Callable[[AgentProcess], Runtime],
    root: Path,
    *,
    port_taken: Callable[[str, int], bool] = _nothing_listens,
    look_at: Callable[[Mapping[str, Path], Callable[[str], None]], Found] | None = None,
    health: HealthProgram | None = None,
) -> AgentProcess:
    """`runtime` creates the runtime of this agent.  `root` is the agent's folder, kept over its lives."""

    async def main(process: Process) -> None:
        assert isinstance(process, AgentProcess)
        world = process.world
        connection = world.connect(process)
        process.agent = Agent(
            connection.log,
            connection.bus,
            world.cluster,
            config,
            runtime(process),
            root=root,
            clock=host.clock,
            port_taken=port_taken,
            since_boot=asyncio.get_running_loop().time,
            machine=lambda: host.name,
            look_at=look_at,
        )
        process.agent._health = process.agent._fitness.program = health
        process.agent._actions.given_up_s = GIVEN_UP_S
        await process.agent.run()

    return host.begin(AgentProcess(host, name, main))


GIVEN_UP_S = 12.0
"""For how long an agent tries a start in vain; histories are short."""


def start_client(host: Host, user: str) -> ClientProcess:
    async def main(process: Process) -> None:
        await asyncio.Event().wait()

    process = host.begin(ClientProcess(host, f"client {user}", main))
    connection = host.world.connect(process)
    process.client = Client(connection.log, connection.bus, host.world.cluster, user=user, clock=host.clock)
    return process
