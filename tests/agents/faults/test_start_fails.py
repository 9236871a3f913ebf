"""Containers that a node can't start: the log says so once, and after a while it is the node's failure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agents.runtime.interface import Key, Unavailable
from agents.runtime.process.runtime import ProcessRuntime
from events import kinds as k
from tests.agents.one_node import NODE, UNTIL_TERM, Node, holds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from agents.runtime.interface import ContainerSpec, Seen

LOG_DRIVER = "invalid log driver (500)"


class Engine(ProcessRuntime):
    """Fails whatever the test tells it to."""

    def __init__(self, root: Path) -> None:
        super().__init__(NODE, root)
        self.broken: Exception | None = None
        self.tries = 0

    async def ensure(self, spec: ContainerSpec, files: Mapping[str, bytes] | None = None) -> Seen:
        self.tries += 1
        if self.broken is not None:
            raise self.broken
        return await super().ensure(spec, files)

    async def remove(self, key: Key) -> None:
        if isinstance(self.broken, OSError):
            raise self.broken
        await super().remove(key)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    await made.clean()


@pytest.fixture
def engine(node: Node) -> Engine:
    made = Engine(node.root / "containers")
    node.make_runtime = lambda: made
    return made


def said(node: Node) -> list[k.Event]:
    return [
        fact for fact in node.facts() if isinstance(fact, k.ContainerDelayed | k.ContainerStarted | k.ContainerExited)
    ]


def refused() -> Unavailable:
    return Unavailable(f"create x: {LOG_DRIVER}", doing="create", said=LOG_DRIVER)


async def test_a_failure_that_lasts_is_on_the_log_once_until_the_container_starts(node: Node, engine: Engine) -> None:
    engine.broken = refused()
    with capture_logs() as lines:
        async with node.agent():
            await node.release()
            delayed = await node.until(k.ContainerDelayed)
            assert isinstance(delayed, k.ContainerDelayed)
            assert (delayed.doing, delayed.reason, delayed.failing, delayed.over) == ("create", LOG_DRIVER, True, False)
            assert delayed.for_s >= 2
            await holds(lambda: engine.tries >= 5)
            engine.broken = None
            await node.until(k.ContainerStarted)
            assert [type(fact) for fact in said(node)] == [k.ContainerDelayed, k.ContainerStarted]
    warned = [line for line in lines if line["log_level"] in ("warning", "error") and line.get("key")]
    assert 1 <= len(warned) <= 2  # not one for each try


@pytest.mark.parametrize("broken", [refused(), OSError(28, "No space left on device")], ids=["engine", "disk"])
async def test_a_start_that_fails_for_too_long_is_the_nodes_failure(
    node: Node, engine: Engine, broken: Exception
) -> None:
    engine.broken = broken
    async with node.agent():
        await node.release(deadlines={"start": "1s"})
        ended = await node.until(k.ContainerExited)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.reason, ended.exit_code, ended.asked, ended.node) == ("start", None, False, NODE)
        assert "its node could not create it for 1 s: " in ended.message
        assert ended.message.endswith("No space left on device" if isinstance(broken, OSError) else LOG_DRIVER)
        tries = engine.tries
        await node.release(app="app-2", deadlines={"start": "1s"})  # The agent goes on.
        await node.until(k.ContainerExited, 2)
        assert engine.tries > tries
        assert [fact.app for fact in said(node) if isinstance(fact, k.ContainerExited)] == ["app-1", "app-2"]


async def test_an_app_that_is_not_wanted_any_more_is_stopped_at_once(node: Node, engine: Engine) -> None:
    engine.broken = refused()
    async with node.agent():
        await node.release()
        await node.until(k.ContainerDelayed)
        await holds(lambda: engine.tries >= 3)
        began = asyncio.get_running_loop().time()
        await node.decide(k.AppCancelled(app="app-1", generation=1))
        ended = await node.until(k.ContainerExited)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.reason, LOG_DRIVER in ended.message) == ("start", True)
        assert asyncio.get_running_loop().time() - began < 10


async def test_what_takes_long_is_no_failure(node: Node, engine: Engine) -> None:
    engine.broken = Unavailable("image is being pulled", code="container.image.pulling")
    async with node.agent():
        await node.release(UNTIL_TERM, deadlines={"start": "1s"})
        delayed = await node.until(k.ContainerDelayed)
        assert isinstance(delayed, k.ContainerDelayed)
        assert (delayed.doing, delayed.failing) == ("pull", False)
        await holds(lambda: engine.tries >= 4)
        assert not [fact for fact in said(node) if isinstance(fact, k.ContainerExited)]
        engine.broken = None
        await node.until(k.ContainerStarted)


async def test_an_ended_container_that_can_not_be_removed_is_on_the_log(node: Node, engine: Engine) -> None:
    async with node.agent():
        await node.release("exit 0")
        await node.until(k.ContainerExited)
        engine.broken = OSError(30, "Read-only file system")
        await node.say(k.PolicyChanged(retention_s=0.1))
        await node.decide(k.AppCompleted(app="app-1", generation=1))
        delayed = await node.until(k.ContainerDelayed)
        assert isinstance(delayed, k.ContainerDelayed)
        assert (delayed.doing, delayed.reason) == ("remove", "Read-only file system")
        engine.broken = None
        over = await node.until(k.ContainerDelayed, 2)
        assert isinstance(over, k.ContainerDelayed)
        assert over.over


async def test_a_container_that_started_after_all_is_not_given_up(node: Node, engine: Engine) -> None:
    """The engine performs what was asked, answers too late, and the next requests fail: its end is reported as it was."""
    real = ProcessRuntime.ensure

    async def ensure(spec: ContainerSpec, files: Mapping[str, bytes] | None = None) -> Seen:
        engine.tries += 1
        if engine.tries == 2:
            await real(engine, spec, files)
            await holds(lambda: (node.root / "ran").exists())
            await asyncio.sleep(1.0)  # The bound is over.
        raise refused()

    engine.ensure = ensure  # type: ignore[method-assign]
    async with node.agent():
        await node.release(f"touch {node.root / 'ran'}; exit 0", deadlines={"start": "1s"})
        ended = await node.until(k.ContainerExited)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.reason, ended.exit_code, ended.asked) == ("exit", 0, False)


async def test_a_container_that_may_run_is_not_given_up(
    node: Node, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine does not say whether it does: unknown is not failed."""
    engine.broken = refused()
    stop, silent = engine.stop, True

    async def stopped(key: Key, grace_s: float) -> bool:
        if silent:
            raise Unavailable("stop: no answer in time")
        return await stop(key, grace_s)

    monkeypatch.setattr(engine, "stop", stopped)
    async with node.agent():
        await node.release(deadlines={"start": "1s"})
        await node.until(k.ContainerDelayed)
        tries = engine.tries
        await holds(lambda: engine.tries >= tries + 2)
        assert not [fact for fact in said(node) if isinstance(fact, k.ContainerExited)]
        silent = False
        ended = await node.until(k.ContainerExited)
        assert isinstance(ended, k.ContainerExited)
        assert ended.reason == "start"
