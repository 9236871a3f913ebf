"""A killed app's containers end at once, though they ignore SIGTERM and have an hour: also those that are stopping already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from events import kinds as k
from tests.agents.one_node import Node, holds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

STUBBORN = 'trap "" TERM; touch "$DORM_CHECKPOINT_DIR/ready-$DORM_RANK"; while :; do sleep 0.05; done'


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.clean()


async def stubborn(node: Node) -> None:
    await node.release(STUBBORN, grace="1h", slots=2, checkpoint=["sleep", "3600"])
    await holds(lambda: all((node.root / f"checkpoints/app-1/ready-{rank}").exists() for rank in (0, 1)))
    await node.said(lambda facts: sum(isinstance(fact, k.ContainerStarted) for fact in facts) == 2)


async def ends(node: Node) -> None:
    def both(facts: list[k.Event]) -> bool:
        return sum(isinstance(fact, k.ContainerExited) for fact in facts) == 2

    exits = [fact for fact in await node.said(both) if isinstance(fact, k.ContainerExited)]
    assert all(fact.asked and fact.killed for fact in exits), exits


async def test_a_kill_waits_for_nothing(node: Node) -> None:
    async with node.agent():
        await stubborn(node)
        await node.decide(k.AppCancelled(app="app-1", generation=1), k.AppKilled(app="app-1", generation=1))
        await ends(node)


async def test_stopping_containers_are_killed(node: Node) -> None:
    async with node.agent() as agent:
        await stubborn(node)
        await node.decide(k.AppCancelled(app="app-1", generation=1))
        await holds(lambda: len(agent._actions.busy) == 2)
        with capture_logs() as logs:
            await node.decide(k.AppKilled(app="app-1", generation=1))
            await ends(node)
        kills = [line["key"].slot for line in logs if line["event"] == "killing a container of a killed app"]
        assert set(kills) == {0, 1}
        assert len(kills) <= 4, "not again at each look, however long an end takes to show"


async def test_an_agent_that_starts_later_knows_of_the_kill(node: Node) -> None:
    async with node.agent():
        await stubborn(node)
    await node.decide(k.AppCancelled(app="app-1", generation=1))
    await node.decide(k.AppKilled(app="app-1", generation=1))
    async with node.agent():
        await ends(node)
