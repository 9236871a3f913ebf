"""A log by the real parts: a master, agents, and containers as processes, with apps that do next to nothing."""

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
from events import subjects
from events.codec import encode
from events.kinds import AppCancelRequested, AppSubmitted, AppUpdated, PolicyChanged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from dorm.core.state import App
    from events.chain import SealKey
    from events.kinds import Event
    from events.log.interface import Bus, EventLog

PATIENCE_S = 60.0
MASTER_KEY: SealKey | None = None
"""What the master seals with, if it does."""
_UNTIL_TERM = "trap 'kill $!; exit 143' TERM; sleep 600 & wait"


class Cluster:
    """A running master with two agents on one log."""

    def __init__(self, log: EventLog, bus: Bus, name: str, root: Path) -> None:
        self._log = log
        self._name = name
        self._count = 0
        self._master = Master(log, bus, name, name="m1", clock=time.time_ns, key=MASTER_KEY)
        self._agents = [self._agent(bus, root, index) for index in range(2)]

    def _agent(self, bus: Bus, root: Path, index: int) -> Agent:
        config = NodeConfig(
            name=f"n{index}",
            address="127.0.0.1",
            capacity={"cpu": 2000},
            checkpoints=root / "checkpoints",
            ports=(21_000 + 100 * index, 21_099 + 100 * index),
        )
        home = root / config.name
        runtime = ProcessRuntime(config.name, home / "runtime")
        return Agent(self._log, bus, self._name, config, runtime, root=home, clock=time.time_ns)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            parts = [self._master.run(), *(agent.run() for agent in self._agents)]
            running = [tasks.create_task(part) for part in parts]
            async with asyncio.timeout(PATIENCE_S):
                for agent in self._agents:
                    await agent.joined.wait()
                await self._master.elected.wait()
                yield
            for task in running:
                task.cancel()

    async def say(self, event: Event) -> None:
        self._count += 1
        subject = subjects.fact(self._name, type(event).__name__, "tester")
        await self._log.append(subject, encode(event), msg_id=f"tester.{self._count}")

    async def submit(self, name: str, script: str, **spec: Any) -> None:
        document = {"name": name, "command": ["sh", "-c", script], "demand": {"cpu": 1}, **spec}
        await self.say(AppSubmitted(id=f"tester.{name}", spec=document))

    async def until(self, app: str, condition: Callable[[App], bool]) -> None:
        """Until the log has a record after which this holds of an app."""
        state = State()
        async with contextlib.aclosing(self._log.read(follow=True)) as batches:
            async for batch in batches:
                for record in batch:
                    evolve(state, record)
                    found = state.find_app(app)
                    if found is not None and condition(found):
                        return


async def play(
    log: EventLog, bus: Bus, name: str, root: Path, *, then: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> None:
    """Apps grow, shrink, fail, are refused, cancelled and done; `then` runs while everything is still up."""
    cluster = Cluster(log, bus, name, root)
    async with cluster.running():
        await cluster.say(PolicyChanged(quiet_ms=20, quiet_limit_ms=100, params={"theta2": 1.0}))
        await cluster.submit("long", _UNTIL_TERM, n_max=4)
        await cluster.until("long", lambda app: app.settled)
        await cluster.submit("second", _UNTIL_TERM, n_max=2, grace="5s")
        await cluster.submit("refused", "true", n_min=5, n_max=2)
        await cluster.until("second", lambda app: app.settled)
        await cluster.say(AppUpdated(app="second", weight=2.0))
        await cluster.submit("failing", "exit 3", retries={"limit": 1, "backoff": "10ms"})
        await cluster.say(AppCancelRequested(app="second", reason="enough"))
        await cluster.until("second", lambda app: app.ended == "cancelled")
        await cluster.until("failing", lambda app: app.ended == "failed")
        await cluster.submit("done", "exit 0", n_max=2)
        await cluster.until("done", lambda app: app.ended == "completed")
        await cluster.until("long", lambda app: app.settled and app.adjustments >= 1)
        if then:
            await then()
        await cluster.say(AppCancelRequested(app="long"))
        await cluster.until("long", lambda app: bool(app.ended) and all(g.ended for g in app.generations.values()))
