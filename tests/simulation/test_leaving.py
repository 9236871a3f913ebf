"""Nodes that leave at any moment, and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.history import History
from tests.tries import tries

if TYPE_CHECKING:
    from tests.simulation.world.shells import AgentProcess


def leave(history: History) -> None:
    """Ask some agents to empty their node and leave, once or twice in the history."""
    chance = history.world.chance("leaving")
    for node in history.cpus:
        for _ in range(chance.randint(0, 2)):
            history.world.at(chance.uniform(1.0, history.span_s), _go, history, node, chance.choice([2.0, 10.0, 30.0]))


def _go(history: History, node: str, timeout: float) -> None:
    process = history.agents.get(node)

    async def go(process: AgentProcess) -> None:
        empty = await process.agent.leave(timeout=timeout)
        process.world.trace("has left", node=node, empty=empty)
        process.stop()

    # An agent that has not joined yet cannot leave, nor can a removed machine.
    if process is not None and process.running and process.agent.joined.is_set():
        process.spawn(go(process))


@pytest.mark.soak
def test_a_node_may_leave_and_return_at_any_time() -> None:
    for seed in range(tries(10, 500)):
        outcome = History(seed, alter=leave).run()
        assert not outcome.broken, "\n".join([outcome.broken, *outcome.story])
