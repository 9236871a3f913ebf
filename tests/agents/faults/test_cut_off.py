"""An agent whose heartbeats do not arrive for longer than its lease stops its containers, and asks again what it
should run."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from agents.agent import Agent
from agents.config import NodeConfig
from agents.runtime.process.runtime import ProcessRuntime
from events import kinds as k
from events import subjects
from events.codec import encode
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import LogUnavailable
from tests.agents.faults.test_agent_races import CLUSTER, NODE, PATIENCE_S, facts, release
from tests.agents.folding import write_parts

if TYPE_CHECKING:
    from pathlib import Path

LEASE_S = 3.0


class DeafBus(MemoryBus):
    """Stores heartbeats only while it is not deaf."""

    deaf = False

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        if self.deaf:
            raise LogUnavailable("nobody hears")
        await super().publish_report(subject, body, timeout=timeout)


async def _settings(log: MemoryLog, lease_s: float) -> None:
    event = k.PolicyChanged(id=f"o.{lease_s}", at=1, by="o", heartbeat_s=0.3, node_grace_s=1, node_lease_s=lease_s)
    await log.append(subjects.fact(CLUSTER, "PolicyChanged", "o"), encode(event), msg_id=event.id)


async def test_containers_end_with_the_lease_and_nothing_starts_before_the_node_has_joined_again(
    tmp_path: Path,
) -> None:
    """The end of a container is no start: the agent may report it before it notices that its lease is over."""
    log, bus = MemoryLog(time.time_ns), DeafBus(time.time_ns)
    await _settings(log, 60.0)
    runtime = ProcessRuntime(NODE, tmp_path / "containers")
    config = NodeConfig(
        name=NODE,
        address="127.0.0.1",
        capacity={"cpu": 4000},
        checkpoints=tmp_path / "checkpoints",
        report_interval_s=0.1,
    )
    agent = Agent(log, bus, CLUSTER, config, runtime, root=tmp_path, clock=time.time_ns)
    running = asyncio.create_task(agent.run())
    leading = asyncio.create_task(write_parts(log, CLUSTER, NODE))
    seen: list[str] = []
    before = 0
    try:
        async with asyncio.timeout(PATIENCE_S):
            await agent.joined.wait()
            await release(log)
            async for fact in facts(log):
                seen.append(type(fact).__name__)
                # The lease is short only once the container runs, so that a slow machine does not end it before.  The node
                # announces itself when the lower lease is in force.
                if isinstance(fact, k.ContainerStarted):
                    await _settings(log, LEASE_S)
                if isinstance(fact, k.NodeJoined) and "ContainerStarted" in seen and not bus.deaf:
                    bus.deaf, before = True, len(seen)
                if isinstance(fact, k.ContainerExited):
                    assert fact.asked, "being cut off is no failure of the app's"
                if bus.deaf and {"NodeJoined", "ContainerExited"} <= set(seen[before:]):
                    break
        assert seen.count("ContainerStarted") == 1
    finally:
        running.cancel()
        leading.cancel()
        await asyncio.gather(running, leading, return_exceptions=True)
