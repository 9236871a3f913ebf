"""Lists of containers that are older than the agent's own last action."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from agents.agent import Agent
from agents.config import NodeConfig
from agents.runtime.process.runtime import ProcessRuntime
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.log.memory import MemoryBus, MemoryLog
from events.spec import check_spec
from tests.agents.folding import write_parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from agents.runtime.interface import ContainerSpec, Seen

CLUSTER, NODE = "race", "node-1"
PATIENCE_S = 20.0


class SlowLister(ProcessRuntime):
    """Its second list begins before a container is created, and returns only after the agent has reported its start."""

    def __init__(self, node: str, root: Path) -> None:
        super().__init__(node, root)
        self.launching = False
        self.listed = asyncio.Event()
        self.told = asyncio.Event()
        self.fresh = asyncio.Event()
        """A list has begun after the old one was told."""

    async def list(self) -> list[Seen]:
        old = self.launching and not self.listed.is_set()
        if self.told.is_set():
            self.fresh.set()
        found = await super().list()
        if old:
            self.listed.set()
            await self.told.wait()
        return found

    async def ensure(self, spec: ContainerSpec, files: Mapping[str, bytes] | None = None) -> Seen:
        self.launching = True
        self._wake()
        await self.listed.wait()
        return await super().ensure(spec, files)


async def release(log: MemoryLog) -> None:
    """What a master writes until an app of one container may start."""
    spec = check_spec({"name": "sleeper", "command": ["sleep", "600"], "demand": {"cpu": 1}})
    placed = k.Placed(slot=0, node=NODE, address="127.0.0.1", port=0)
    change = k.Resize(app="a", from_generation=0, to_generation=1, placement=[placed], adjustment="start")
    resized = k.Resized(
        policy="static", policy_version=1, params={}, solver="", changes=[change], reasons={}, utilization=0.0,
        fairness_loss=0.0, fairness_budget=0.0, excess=0.0, overhead=0, overhead_budget=0, status="", bound=0.0, digest="",
    )  # fmt: skip
    said = (k.AppAccepted(app="a", spec=spec, submission="s"), resized, k.GenerationReleased(app="a", generation=1))
    for fact in said:
        basis = await log.end()
        event = k.Round(id=f"m.{basis}", at=1, by="m", epoch=1, basis=basis, allocated=False, events=[fact])
        await log.append(subjects.rounds(CLUSTER), encode(event), msg_id=event.id)


async def facts(log: MemoryLog) -> AsyncIterator[k.Event]:
    async with contextlib.aclosing(log.read(follow=True)) as batches:
        async for batch in batches:
            for record in batch:
                yield decode(record)


async def test_a_container_that_started_while_it_was_listed_is_not_lost(tmp_path: Path) -> None:
    log, bus = MemoryLog(time.time_ns), MemoryBus(time.time_ns)
    runtime = SlowLister(NODE, tmp_path / "containers")
    config = NodeConfig(name=NODE, address="127.0.0.1", capacity={"cpu": 4000}, checkpoints=tmp_path / "checkpoints")
    agent = Agent(log, bus, CLUSTER, config, runtime, root=tmp_path, clock=time.time_ns)
    running = asyncio.create_task(agent.run())
    leading = asyncio.create_task(write_parts(log, CLUSTER, NODE))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await agent.joined.wait()
            await release(log)
            async for fact in facts(log):
                if isinstance(fact, k.ContainerStarted):
                    break
            runtime.told.set()
            await runtime.fresh.wait()
            # Whatever the old list led to has begun by now; a fact made from it comes before this stop's own.
            for seen in await runtime.list():
                assert seen.state == "running"
                await runtime.stop(seen.key, 0.0)
            async for fact in facts(log):
                if isinstance(fact, k.ContainerExited):
                    assert (fact.reason, fact.exit_code) == ("exit", 137), fact
                    break
    finally:
        running.cancel()
        leading.cancel()
        await asyncio.gather(running, leading, return_exceptions=True)
        await runtime.open()
        for seen in await runtime.list():
            await runtime.stop(seen.key, 0.0)
        await runtime.close()
