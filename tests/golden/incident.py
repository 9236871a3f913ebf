"""An incident by the real parts, half a minute long: of three nodes one loses its agent, with what runs there, until its lease
has ended; the apps continue elsewhere; the agent comes back and ends what it finds running."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from agents.agent import Agent
from agents.config import NodeConfig
from agents.runtime.process.runtime import ProcessRuntime
from dorm.core.evolve import evolve
from dorm.core.state import State
from dorm.master.master import Master
from events import kinds as k
from events import subjects
from events.codec import encode
from events.log.memory import MemoryBus, MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from events.log.records import Record

CLUSTER = "incident"
PATIENCE_S = 90.0
_TRAIN = """
step=0
trap 'echo "{\\"checkpoint\\": $step}" >> "$DORM_PROGRESS"; exit 143' TERM
while :; do step=$((step + 1)); echo "{\\"step\\": $step, \\"loss\\": 0.5}" >> "$DORM_PROGRESS"; sleep 0.2; done
"""


class Incident:
    """A master and agents on one log in memory."""

    def __init__(self, root: Path) -> None:
        self.log = MemoryLog(time.time_ns)
        self._bus = MemoryBus(time.time_ns)
        self._root = root
        self._said = 0
        self._state = State()

    def _agent(self, index: int) -> Agent:
        config = NodeConfig(
            name=f"worker-{index}",
            address=f"10.1.2.{index}",
            capacity={"cpu": 4000, "memory": 8 * 2**30},
            checkpoints=self._root / "checkpoints",
            ports=(21_000 + 100 * index, 21_099 + 100 * index),
            report_interval_s=0.5,
            labels={"zone": "east" if index < 2 else "west"},
        )
        home = self._root / config.name
        runtime = ProcessRuntime(config.name, home / "runtime", trust_apps=True)
        return Agent(self.log, self._bus, CLUSTER, config, runtime, root=home, clock=time.time_ns)

    async def say(self, event: k.Event, user: str) -> None:
        self._said += 1
        subject = subjects.fact(CLUSTER, type(event).__name__, user)
        await self.log.append(subject, encode(event), msg_id=f"{user}.{self._said}")

    async def submit(self, user: str, name: str, script: str = _TRAIN, **spec: Any) -> None:
        demand = spec.pop("demand", {"cpu": 1, "memory": "1GiB"})
        document = {"name": name, "command": ["sh", "-c", script], "demand": demand, "user": user, **spec}
        await self.say(k.AppSubmitted(spec=document), user)

    async def until(self, condition: Callable[[State], bool]) -> None:
        """From now on: what was so before does not count."""
        state = self._state
        if condition(state):
            return
        async with contextlib.aclosing(self.log.read(after=state.seq, follow=True)) as batches:
            async for batch in batches:
                for record in batch:
                    evolve(state, record)
                    if condition(state):
                        return

    async def play(self) -> None:
        # A node counts with the longest lease that was in force since it joined.
        await self.say(
            k.PolicyChanged(
                quiet_ms=50, quiet_limit_ms=200, heartbeat_s=0.5, node_grace_s=2, node_lease_s=3, params={"theta2": 1.0}
            ),
            "operator",
        )
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            master = Master(self.log, self._bus, CLUSTER, name="headnode-1", clock=time.time_ns)
            agents = [self._agent(index) for index in range(3)]
            running = [tasks.create_task(part) for part in (master.run(), *(agent.run() for agent in agents))]
            for agent in agents:
                await agent.joined.wait()
            try:
                await self._work()
                await self._lose(running.pop(1))
                agents.append(self._agent(0))
                running.append(tasks.create_task(agents[-1].run()))
                await agents[-1].joined.wait()
                await self.until(lambda s: _up(s, "worker-0") and _settled(s, "vision", 4))
                await self._end()
            finally:
                # Containers run on when agents end, and here no agent would adopt them.
                for agent in agents[1:]:
                    await agent.kill_all()
            for task in running:
                task.cancel()

    async def _work(self) -> None:
        await self.submit("alice", "vision", n_min=2, n_max=8, env={"TOKEN": "abc-123"}, labels={"team": "robots"})
        await self.until(lambda s: _settled(s, "vision", 8))
        await self.submit("bob", "speech", n_max=4, weight=2.0, require='zone == "west"')
        await self.submit("carol", "huge", demand={"cpu": 64})
        await self.submit("carol", "broken", "echo no data; exit 3", retries={"limit": 1, "backoff": "100ms"})
        await self.until(lambda s: any(app.ended == "failed" for app in s.apps.values()))
        await self.until(lambda s: _settled(s, "speech", 1) and _settled(s, "vision", 2))

    async def _lose(self, agent: asyncio.Task[None]) -> None:
        agent.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await agent
        await self.until(lambda s: "worker-0" in s.nodes and s.nodes["worker-0"].lease_ended)
        await self.until(lambda s: _settled(s, "vision", 2))

    async def _end(self) -> None:
        await self.say(k.NodeDrainRequested(node="worker-2", reason="a fan is loud"), "operator")
        await self.until(lambda s: "worker-2" in s.nodes and not s.nodes["worker-2"].usable)
        for name in ("vision", "speech"):
            await self.say(k.AppCancelRequested(app=name, reason="enough seen"), "operator")
        await self.until(
            lambda s: not s.names and all(g.ended for app in s.apps.values() for g in app.generations.values())
        )


def _up(state: State, node: str) -> bool:
    return node in state.nodes and state.nodes[node].condition == "up"


def _settled(state: State, name: str, least: int) -> bool:
    """Whether an app runs with at least this many containers."""
    app = state.find_app(name)
    current = app.current if app is not None else None
    return app is not None and current is not None and app.settled and current.running >= least


async def play(root: Path) -> list[Record]:
    incident = Incident(root)
    await incident.play()
    return incident.log.records
