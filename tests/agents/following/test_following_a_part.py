"""An agent that follows its part: what it accepts and refuses, and what it waits for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec
import pytest_asyncio
import structlog

from agents import following
from agents.desired import Desired
from agents.runtime.interface import Key
from dorm.core.evolve import evolve
from dorm.core.parts.deriving import part_of
from dorm.core.state import State
from events import kinds as k
from events.chain import SealKey, new_seed
from events.quantities import SECOND
from tests.agents.folding import store, write_parts
from tests.agents.one_node import CLUSTER, NODE, PATIENCE_S, Node, holds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from events.parts import NodePart

KEY = Key("app-1", 1, 0)


@pytest_asyncio.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(following, "_LOOK_S", 0.05)
    node = Node(tmp_path)
    node.writes_parts = False
    yield node
    await node.clean()


def derived(node: Node) -> NodePart:
    state = State()
    for record in node.log.records:
        evolve(state, record)
    return part_of(state, CLUSTER, NODE)


@contextlib.asynccontextmanager
async def writing(node: Node, key: SealKey | None = None) -> AsyncIterator[None]:
    """A leading master writes a part after each record."""
    task = asyncio.create_task(write_parts(node.log, CLUSTER, NODE, key))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_runs_the_containers_of_its_part_and_reads_only_its_own_facts(node: Node) -> None:
    async with writing(node), node.working() as agent:
        await holds(lambda: agent.desired.started == {KEY})
        await node.decide(k.AppCompleted(app="app-1", generation=1))
        assert isinstance(exit_ := await node.until(k.ContainerExited), k.ContainerExited)
        assert exit_.asked
        await holds(lambda: agent.desired.fresh and "app-1" in agent.desired.ended)


async def test_after_a_restart_nothing_changes_until_a_later_part_is_there(node: Node) -> None:
    """The old part is believed about what runs, and about nothing else: the log may have counted all of it as ended."""
    async with writing(node), node.working():
        pass
    node.log.parts.writes(True)
    (node.root / "agent" / "desired").unlink()
    await node.decide(k.AppCompleted(app="app-1", generation=1))
    async with node.agent() as agent:
        assert agent.desired.part_seq > 0
        assert not agent.desired.fresh
        node.bus.beats = asyncio.Queue()
        async with asyncio.timeout(PATIENCE_S):
            await node.bus.beats.get()  # It keeps the lease of what runs.
            await node.bus.beats.get()
        assert not [fact for fact in node.facts() if isinstance(fact, k.ContainerExited)]
        async with writing(node):
            await node.until(k.ContainerExited)


async def test_before_its_first_part_an_agent_announces_itself_and_waits(node: Node) -> None:
    """For example on a new cluster whose master is still to come: the agent says once for what it waits."""
    with structlog.testing.capture_logs() as logs:
        async with node.agent(joined=False) as agent:
            await node.until(k.NodeJoined)
            await holds(lambda: any("waits for its part" in line["event"] for line in logs))
            assert not agent.joined.is_set()
            async with writing(node):
                await asyncio.wait_for(agent.joined.wait(), PATIENCE_S)
                await node.release()
                await node.until(k.ContainerStarted)
    assert [line["reason"] for line in logs if "waits for its part" in line["event"]] == [following._WHY_NO_PART[False]]


async def test_between_two_masters_an_agent_keeps_what_runs(node: Node) -> None:
    async with writing(node), node.working() as agent:
        pass
    async with node.agent() as agent:
        await holds(lambda: agent.desired.joined_seq == len(node.log.records))
        assert not agent.desired.fresh
        async with writing(node):
            await holds(lambda: agent.desired.fresh)
            await node.release(app="app-2")
            await node.until(k.ContainerStarted, 2)
    assert not [fact for fact in node.facts() if isinstance(fact, k.ContainerExited)]


async def test_a_part_that_no_master_signed_is_not_obeyed(node: Node) -> None:
    key = SealKey(new_seed())
    await node.say(k.TrustEnabled(masters=[key.public], nodes=[NODE]))
    async with writing(node, key), node.agent() as agent:
        await holds(lambda: agent.desired.fresh)
    async with writing(node, SealKey(new_seed())), node.agent(joined=False) as agent:
        await node.until(k.NodeJoined, 2)
        await holds(lambda: agent.desired.unsigned > 0)
        assert agent.desired.part_seq < node.log.records[-1].seq
    async with node.agent(joined=False) as agent:
        await store(node.log, msgspec.structs.replace(derived(node), masters=None, seq=node.log.records[-1].seq))
        await holds(lambda: agent.desired.unsigned > 0)
        assert agent.desired.known is not None, "no part makes a cluster open"


# pure


async def lived(node: Node) -> NodePart:
    async with writing(node), node.working() as agent:
        await holds(lambda: agent.desired.fresh)
    return derived(node)


async def test_older_and_foreign_parts_change_nothing(node: Node) -> None:
    part = await lived(node)
    desired = Desired(NODE)
    assert desired.install(msgspec.structs.replace(part, epoch=2))
    before = msgspec.structs.asdict(desired)
    for other in (
        part,
        msgspec.structs.replace(part, seq=part.seq - 1, epoch=2),
        msgspec.structs.replace(part, seq=part.seq + 1, epoch=1),
        msgspec.structs.replace(part, seq=part.seq + 1, epoch=2, node="node-2"),
    ):
        assert not desired.install(other)
    assert msgspec.structs.asdict(desired) == before


async def test_own_facts_after_a_part_are_applied_on_top(node: Node) -> None:
    part = await lived(node)
    desired = Desired(NODE)
    desired.install(msgspec.structs.replace(part, seq=1, apps={}))
    for record in node.log.records:
        desired.fold(record)
    assert desired.joined_seq == 1
    desired.install(msgspec.structs.replace(part, seq=2, apps={**part.apps}))
    assert desired.due == desired.started == {KEY}
    exit_ = k.ContainerExited(
        id="x", at=1, by=NODE, app=KEY.app, generation=1, slot=0, node=NODE, exit_code=0, reason="exit", asked=False,
        identity=desired.holder,
    )  # fmt: skip
    last = node.log.records[-1]
    desired.fold(
        msgspec.structs.replace(
            last, seq=last.seq + 1, body=msgspec.msgpack.encode(exit_), subject=f"dorm.{CLUSTER}.ContainerExited.{NODE}"
        )
    )
    assert (desired.due, desired.exited) == (set(), {KEY})
    desired.install(msgspec.structs.replace(part, seq=last.seq))
    assert (desired.due, desired.exited) == (set(), {KEY}), "the part is of before the exit"
    assert desired.time <= last.time + SECOND


async def test_the_owner_of_output_is_known_after_the_end_of_the_app(node: Node) -> None:
    async with writing(node), node.agent() as agent:
        await node.release("echo done")
        await node.until(k.ContainerExited)
        owner = agent.desired.owner_of("app-1")
        await node.decide(k.AppCompleted(app="app-1", generation=1))
        await holds(lambda: "app-1" in agent.desired.ended)
        assert "app-1" not in agent.desired.apps
        assert owner is not None
        assert agent.desired.owner_of("app-1") == owner
        assert agent.desired.owner_of("app-2") is None
