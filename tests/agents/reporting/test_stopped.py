"""A node's reports of stopped containers: by a round, by its own request, and by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agents.runtime.docker.engine import Engine
from events import kinds as k
from tests.agents.one_node import NODE, UNTIL_TERM, Node, holds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from agents.runtime.docker.runtime import DockerRuntime

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
async def node(tmp_path: Path, docker_node: Callable[..., DockerRuntime]) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    node.make_runtime = lambda: docker_node(NODE)
    yield node
    runtime = docker_node(NODE)
    await runtime.open()
    for seen in await runtime.list():
        await runtime.stop(seen.key, 0.0)
        await runtime.remove(seen.key)
    await runtime.close()


async def test_an_engines_hint_about_the_agents_own_action_is_ignored(
    node: Node, docker_image: str, docker_host: str, tmp_path: Path
) -> None:
    # Its first generation ends with the code of a signal, as most programs do; the next one ends well when it is stopped.
    script = f'touch "$DORM_CHECKPOINT_DIR/$DORM_GENERATION"; [ $DORM_GENERATION = 2 ] || exec sleep 3600; {UNTIL_TERM}'
    async with node.agent():
        await node.release(script, image=docker_image)
        await node.until(k.ContainerStarted)
        await holds(lambda: (tmp_path / "checkpoints/app-1/1").exists())
        await node.resize("app-1", 2, 1)
        stopped = await node.until(k.ContainerExited)
        assert isinstance(stopped, k.ContainerExited)
        assert (stopped.generation, stopped.asked, stopped.message) == (1, True, "")

        await node.decide(k.GenerationReleased(app="app-1", generation=2))
        await holds(lambda: (tmp_path / "checkpoints/app-1/2").exists())
        engine = Engine(docker_host)
        await engine.open()
        (container,) = await engine.list((f"dorm.node={NODE}", "dorm.app=app-1", "dorm.generation=2"))
        await engine.kill(container["Id"], "SIGTERM")
        await engine.close()
        by_hand = await node.until(k.ContainerExited, 2)
        assert isinstance(by_hand, k.ContainerExited)
        assert (by_hand.generation, by_hand.asked) == (2, True)
        assert by_hand.message.startswith("its engine was asked to stop it, the engine or the machine was restarted")
