"""Agents that are asked to empty their node and leave."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from events import kinds as k
from tests.agents.one_node import PATIENCE_S, Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.clean()


async def test_an_empty_node_leaves(node: Node) -> None:
    async with node.agent() as agent:
        assert await agent.leave(timeout=PATIENCE_S)
    assert [type(fact) for fact in node.facts()] == [k.NodeJoined, k.NodeDrainRequested, k.NodeLeft]


async def test_no_one_waits_for_an_absent_log_beyond_the_limit(node: Node) -> None:
    async with node.agent() as agent:
        node.log.away = True
        async with asyncio.timeout(PATIENCE_S):
            assert not await agent.leave(timeout=0.1)
    assert [type(fact) for fact in node.facts()] == [k.NodeJoined]


async def test_a_delayed_goodbye_does_not_count_for_the_next_process(node: Node) -> None:
    async with node.agent() as agent:
        assert await agent.leave(timeout=PATIENCE_S)
    goodbye = node.log.records[-1]
    async with node.agent() as agent:
        late = await node.log.append(goodbye.subject, goodbye.body)
        async with asyncio.timeout(PATIENCE_S), agent._changed:
            await agent._changed.wait_for(lambda: agent.desired.seq >= late.seq)
        assert agent.desired.condition == "up"
