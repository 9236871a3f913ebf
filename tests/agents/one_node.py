"""One node's agent on a log in memory that a test can take away, and processes as its containers.  The test is the master,
and the node's part is stored after each record."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from agents.agent import Agent
from agents.config import NodeConfig
from agents.fitness import look_at_machine
from agents.runtime.process.runtime import ProcessRuntime
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import Appended, LogUnavailable, Record
from events.spec import check_spec
from tests.agents.folding import write_parts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from agents.gpus import Source
    from agents.runtime.interface import Runtime

CLUSTER, NODE = "one", "node-1"
PATIENCE_S = 20.0
UNTIL_TERM = 'trap "exit 0" TERM; while :; do sleep 0.05; done'


class Log(MemoryLog):
    """Takes nothing and gives nothing while it is away."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        super().__init__(time.time_ns, records)
        self.away = False
        self.read_after: list[int] = []
        """Where agents began to follow it."""

    async def append(
        self, subject: str, body: bytes, *, msg_id: str = "", expected_last: int | None = None, timeout: float = 5.0
    ) -> Appended:
        if self.away and subjects.who_of(subject) == NODE:
            raise LogUnavailable("nobody answers")
        return await super().append(subject, body, msg_id=msg_id, expected_last=expected_last, timeout=timeout)

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        if follow and subjects:
            self.read_after.append(after)
        async with contextlib.aclosing(super().read(after=after, subjects=subjects, follow=follow)) as batches:
            async for batch in batches:
                yield batch


class Bus(MemoryBus):
    """Counts the heartbeats that it stored; with its log away it stores none."""

    def __init__(self, log: Log) -> None:
        super().__init__(time.time_ns)
        self.log = log
        self.beats: asyncio.Queue[k.NodeReported] = asyncio.Queue()

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        if self.log.away:
            raise LogUnavailable("nobody hears")
        await super().publish_report(subject, body, timeout=timeout)
        self.beats.put_nowait(msgspec.msgpack.decode(body, type=k.NodeReported))


class Node:
    """The machine: what is in `root` and what runs outlive the agent."""

    def __init__(self, root: Path, *, records: Iterable[Record] = ()) -> None:
        self.root = root
        self.log = Log(records)
        self.bus = Bus(self.log)
        self.clock: Callable[[], int] = time.time_ns
        self.look_at = look_at_machine
        self.make_runtime: Callable[[], Runtime] = lambda: ProcessRuntime(NODE, root / "containers")
        self.writes_parts = True
        """Whether the part is stored after each record, while an agent is there."""
        self.running: asyncio.Task[None] | None = None
        """The agent that was started last."""
        self._said = 0
        self._basis = 0

    @contextlib.asynccontextmanager
    async def agent(
        self, *, joined: bool = True, gpus: tuple[str, ...] = (), cards: Source | None = None
    ) -> AsyncIterator[Agent]:
        """It lives as long as the block, and its end is as sudden for its containers as a kill."""
        config = NodeConfig(
            name=NODE,
            address="127.0.0.1",
            capacity={"cpu": 4000, **({"gpu": len(gpus)} if gpus else {})},
            gpus=gpus,
            checkpoints=self.root / "checkpoints",
            report_interval_s=0.1,
            progress_interval_s=0.0,
            secrets=self.root / "secrets",
        )
        agent = Agent(
            self.log, self.bus, CLUSTER, config, self.make_runtime(), root=self.root / "agent", clock=self.clock,
            cards=cards, look_at=self.look_at,
        )  # fmt: skip
        running = self.running = asyncio.create_task(agent.run())
        joining = asyncio.create_task(agent.joined.wait())
        leading = asyncio.create_task(write_parts(self.log, CLUSTER, NODE) if self.writes_parts else asyncio.sleep(0))
        try:
            async with asyncio.timeout(PATIENCE_S):
                if joined:
                    await asyncio.wait([running, joining], return_when=asyncio.FIRST_COMPLETED)
                    if running.done():
                        await running
                yield agent
        finally:
            for task in (joining, running, leading):
                task.cancel()
            await asyncio.gather(running, joining, return_exceptions=True)
            await asyncio.gather(leading, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[Agent]:
        """Its agent, with one container that runs."""
        async with self.agent() as agent:
            await self.release()
            await self.until(k.ContainerStarted)
            yield agent

    async def clean(self) -> None:
        """Nothing of it runs on."""
        runtime = ProcessRuntime(NODE, self.root / "containers")
        await runtime.open()
        for seen in await runtime.list():
            await runtime.stop(seen.key, 0.0)
        await runtime.close()

    # what the master and operators say

    async def say(self, event: k.Event) -> None:
        """As an author other than the node and the master."""
        self._said += 1
        subject = subjects.fact(CLUSTER, type(event).__name__, "tester")
        await self.log.append(subject, encode(event), msg_id=f"t.{self._said}")

    async def decide(self, *facts: k.MasterFact) -> None:
        """One round."""
        basis = await self.log.end()
        event = k.Round(id=f"m.{basis}", at=1, by="m", epoch=1, basis=basis, allocated=False, events=list(facts))
        await self.log.append(subjects.rounds(CLUSTER), encode(event), msg_id=event.id)

    async def release(
        self, script: str = UNTIL_TERM, *, app: str = "app-1", slots: int = 1, checkpoints: str = "",
        demand: Mapping[str, int] = MappingProxyType({}), **more: Any,
    ) -> None:  # fmt: skip
        """An app's first generation, all of it here, which works in that folder of checkpoints; `more` is of its spec."""
        spec = check_spec(
            {
                "name": "app",
                "command": ["sh", "-c", script],
                "demand": {"cpu": 1, **demand},
                "grace": "1s",
                "n_max": slots,
                **more,
            }
        )
        await self.decide(k.AppAccepted(app=app, spec=spec, submission="s"))
        await self.resize(app, 1, slots)
        await self.decide(k.GenerationReleased(app=app, generation=1, checkpoints=checkpoints))

    async def resize(
        self, app: str, generation: int, slots: int, *, prepare_s: float = 0.0, elsewhere: Sequence[str] = ()
    ) -> None:
        """The next generation is decided, and not yet released; it has one more slot on each node `elsewhere`."""
        nodes = [*[NODE] * slots, *elsewhere]
        placement = [k.Placed(slot=slot, node=node, address="127.0.0.1", port=0) for slot, node in enumerate(nodes)]
        change = k.Resize(
            app=app,
            from_generation=generation - 1,
            to_generation=generation,
            placement=placement,
            adjustment="restart" if generation > 1 else "start",
            prepare_s=prepare_s,
        )
        await self.decide(
            k.Resized(
                policy="p",
                policy_version=1,
                params={},
                solver="",
                changes=[change],
                reasons={},
                utilization=0.0,
                fairness_loss=0.0,
                fairness_budget=0.0,
                excess=0.0,
                overhead=0,
                overhead_budget=0,
                status="optimal",
                bound=0.0,
                digest="",
            )
        )

    # what the node says

    def facts(self) -> list[k.Event]:
        """All that the node has said by now."""
        return [decode(record) for record in self.log.records if subjects.who_of(record.subject) == NODE]

    async def said(self, right: Callable[[list[k.Event]], bool]) -> list[k.Event]:
        """Wait until what the node has said is so."""
        async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(self.log.read(follow=True)) as batches:
            async for _ in batches:
                if right(self.facts()):
                    return self.facts()
        raise AssertionError("the log ended")

    async def until(self, kind: type[k.Event], count: int = 1) -> k.Event:
        """Wait for the node's first (second, …) fact of this kind."""
        facts = await self.said(lambda facts: sum(isinstance(fact, kind) for fact in facts) >= count)
        return [fact for fact in facts if isinstance(fact, kind)][count - 1]


async def holds(right: Callable[[], bool]) -> None:
    """Wait until it does."""
    async with asyncio.timeout(PATIENCE_S):
        while not right():  # noqa: ASYNC110  (no event reports it)
            await asyncio.sleep(0.01)
