"""What an agent prepares for a generation that is not released yet, with real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agents.runtime.interface import Key, Refused
from agents.runtime.process.runtime import ProcessRuntime
from events import kinds as k
from events import subjects
from events.codec import encode
from events.spec import check_spec
from tests.agents.one_node import CLUSTER, NODE, UNTIL_TERM, Node, holds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agents.agent import Agent
    from agents.runtime.interface import ContainerSpec

APP = "app-1"
BOTH = {"command": ["sh", "-c", f"echo started; {UNTIL_TERM}"], "resume": ["sh", "-c", f"echo resumed; {UNTIL_TERM}"]}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    await made.clean()


def state(agent: Agent, generation: int, slot: int = 0) -> str:
    key = Key(APP, generation, slot)
    return next((seen.state for seen in agent._seen if seen.key == key), "")


async def joined_elsewhere(node: Node, name: str) -> None:
    event = k.NodeJoined(node=name, address=name, capacity={"cpu": 4000}, ports=(20_000, 20_099), prepares=True)
    await node.log.append(subjects.fact(CLUSTER, "NodeJoined", name), encode(event), msg_id=f"j.{name}")


async def prepared_elsewhere(node: Node, generation: int, name: str) -> None:
    event = k.ContainersPrepared(app=APP, generation=generation, node=name, created=1)
    await node.log.append(subjects.fact(CLUSTER, "ContainersPrepared", name), encode(event), msg_id=f"p.{name}")


async def test_the_old_generation_works_until_all_nodes_are_prepared(node: Node) -> None:
    async with node.working() as agent:
        await joined_elsewhere(node, "node-2")
        await node.resize(APP, 2, 2, prepare_s=600.0, elsewhere=["node-2"])
        said = await node.until(k.ContainersPrepared)
        assert isinstance(said, k.ContainersPrepared)
        assert (said.generation, said.node, said.created, said.reason) == (2, NODE, 2, "")
        await holds(lambda: [state(agent, 2, 0), state(agent, 2, 1)] == ["created", "created"])
        assert state(agent, 1) == "running"
        await prepared_elsewhere(node, 2, "node-2")
        ended = await node.until(k.ContainerExited)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.generation, ended.asked) == (1, True)
        assert not [fact for fact in node.facts() if isinstance(fact, k.ContainerStarted) and fact.generation == 2]
        await node.decide(k.GenerationReleased(app=APP, generation=2, previous=1))
        await node.until(k.ContainerStarted, 3)


async def test_without_a_wait_it_stops_at_once_and_is_prepared_all_the_same(node: Node) -> None:
    async with node.working():
        await node.resize(APP, 2, 1)
        await node.until(k.ContainerExited)
        await node.until(k.ContainersPrepared)


async def test_preparations_for_an_overtaken_plan_are_removed(node: Node) -> None:
    async with node.working() as agent:
        await joined_elsewhere(node, "node-2")
        await node.resize(APP, 2, 2, prepare_s=600.0, elsewhere=["node-2"])
        await node.until(k.ContainersPrepared)
        await node.resize(APP, 3, 1)
        await holds(lambda: {seen.key.generation for seen in agent._seen if seen.state == "created"} == {3})


@pytest.mark.parametrize("resume", [True, False])
async def test_it_starts_with_the_command_of_its_release(node: Node, resume: bool) -> None:
    spec = check_spec({"name": "app", "demand": {"cpu": 1}, "grace": "1s", **BOTH})
    async with node.agent() as agent:
        await node.decide(k.AppAccepted(app=APP, spec=spec, submission="s"))
        await node.resize(APP, 1, 1)
        await node.decide(k.GenerationReleased(app=APP, generation=1))
        await node.until(k.ContainerStarted)
        await node.resize(APP, 2, 1, prepare_s=600.0)
        await node.until(k.ContainersPrepared)
        await node.until(k.ContainerExited)
        await node.decide(k.GenerationReleased(app=APP, generation=2, previous=1, resume=resume))
        await node.until(k.ContainerStarted, 2)
        runtime = agent._runtime
        words = b""
        async for chunk in runtime.logs(Key(APP, 2, 0), follow=True, tail=None):
            words += chunk
            if b"\n" in words:
                break
        assert words.split() == [b"resumed" if resume else b"started"]


class NothingAhead(ProcessRuntime):
    """Prepares nothing: its disk is full, say, or the registry does not have the image."""

    async def prepare(self, spec: ContainerSpec) -> None:
        raise Refused("image", "no such image")


async def test_a_failure_ahead_costs_the_app_nothing(node: Node) -> None:
    node.make_runtime = lambda: NothingAhead(NODE, node.root / "containers")
    async with node.working():
        await node.resize(APP, 2, 1, prepare_s=600.0)
        said = await node.until(k.ContainersPrepared)
        assert isinstance(said, k.ContainersPrepared)
        assert (said.created, said.reason) == (0, "no such image")
        await node.until(k.ContainerExited)
        await node.decide(k.GenerationReleased(app=APP, generation=2, previous=1))
        await node.until(k.ContainerStarted, 2)
        assert len([fact for fact in node.facts() if isinstance(fact, k.ContainerExited)]) == 1


async def test_another_agent_continues_after_a_killed_one(node: Node) -> None:
    async with node.working():
        await joined_elsewhere(node, "node-2")
        await node.resize(APP, 2, 2, prepare_s=600.0, elsewhere=["node-2"])
        await node.until(k.ContainersPrepared)
    async with node.agent() as agent:
        await holds(lambda: [state(agent, 2, 0), state(agent, 2, 1)] == ["created", "created"])
        assert state(agent, 1) == "running"
        await prepared_elsewhere(node, 2, "node-2")
        await node.until(k.ContainerExited)
