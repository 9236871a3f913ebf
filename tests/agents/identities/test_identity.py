"""The identity of an agent's machine, and conflicts with another machine over the node's name."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from agents.machine_identity import FILE, Identity
from agents.runtime.interface import Conflict, Seen
from agents.runtime.process.runtime import ProcessRuntime
from events import kinds as k
from tests.agents.one_node import NODE, Node, holds
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agents.agent import Agent


def identity(folder: Path, machine: str = "one", root: str = "root") -> str:
    folder.mkdir(exist_ok=True)
    made = Identity(folder, lambda: machine)
    made.load(root)
    return made.value


def test_the_identity_belongs_to_the_folder(tmp_path: Path) -> None:
    first = identity(tmp_path / "a")
    assert len(first) == 32
    assert identity(tmp_path / "a") == first
    assert identity(tmp_path / "b") != first


def test_a_folder_that_was_copied_to_another_machine_is_another(tmp_path: Path) -> None:
    first = identity(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    second = identity(tmp_path / "b", "two")
    assert second != first
    assert identity(tmp_path / "b", "two") == second


def test_a_folder_that_has_lost_its_containers_is_another(tmp_path: Path) -> None:
    """What they were may run on, unseen, for as long as the lease."""
    first = identity(tmp_path / "a")
    second = identity(tmp_path / "a", root="another")
    assert second != first
    assert identity(tmp_path / "a", root="another") == second


async def test_an_agent_whose_containers_were_removed_waits_out_the_lease(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.working() as first:
        pass
    shutil.rmtree(tmp_path / "containers")
    async with node.agent(joined=False) as second:
        await waits(second, node)
        assert second.identity.value != first.identity.value
        assert exits(node) == []


def test_a_machine_without_an_id_keeps_existing_containers(tmp_path: Path) -> None:
    first = identity(tmp_path / "a", "")
    assert identity(tmp_path / "a", "") == identity(tmp_path / "a", "one") == first


@pytest.mark.parametrize("text", ["", "no identity\n", "f" * 31 + " one root\n", "f" * 32 + " one\n", "\udcff"])
def test_a_record_that_was_tampered_with_is_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    with raises(Conflict, "identity.malformed"):
        identity(tmp_path)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """Two machines of one name on one log."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = Node(tmp_path / "old"), Node(tmp_path / "new")
    new.log, new.bus = old.log, old.bus
    yield old, new
    await old.clean()
    await new.clean()


def exits(node: Node) -> list[k.ContainerExited]:
    return [fact for fact in node.facts() if isinstance(fact, k.ContainerExited)]


def joins(node: Node) -> list[str]:
    return [fact.identity for fact in node.facts() if isinstance(fact, k.NodeJoined)]


async def lease_over(node: Node) -> None:
    """What a master says that has not heard the node until its lease was over."""
    await node.decide(k.NodeLost(node=NODE, last_heard=1))
    await node.decide(k.NodeLeaseEnded(node=NODE, last_heard=1))


async def waits(agent: Agent, node: Node) -> None:
    """It has been refused, and knows it."""
    await holds(lambda: agent.identity.value in joins(node) and agent._cut_off)


async def test_a_newcomer_waits_and_reports_nothing_about_the_others_containers(
    two: tuple[Node, Node], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = two
    async with old.working() as first:
        async with new.agent(joined=False) as second:
            await waits(second, new)
            beats = old.bus.beats
            while not beats.empty():
                beats.get_nowait()
            for _ in range(3):
                assert (await beats.get()).identity == first.identity.value, "only the holder gives signs of life"
            assert not second.joined.is_set()
            assert await second.leave(timeout=1.0), "it has nothing to leave"
            assert exits(old) == []
            assert [seen.state for seen in await first._runtime.list()] == ["running"]
        said = capsys.readouterr().out
        assert "another machine at 127.0.0.1 holds the name node-1" in said
        assert "another --name" in said
        assert not any(isinstance(fact, k.NodeDrainRequested | k.NodeLeft) for fact in old.facts())


async def test_a_newcomer_takes_over_and_the_old_agent_stops_its_containers(two: tuple[Node, Node]) -> None:
    old, new = two
    async with old.working() as first:
        async with new.agent(joined=False) as second:
            await waits(second, new)
            await lease_over(old)
            await asyncio.wait_for(second.joined.wait(), 20.0)
            await waits(first, old)
            await holds(lambda: joins(old)[-1] == first.identity.value)
            assert [seen.state for seen in await first._runtime.list()] == ["exited"]
            assert first.desired.holder == second.desired.holder == second.identity.value
            await new.resize("app-1", 2, 1)
            await new.decide(k.GenerationReleased(app="app-1", generation=2, previous=1))
            await old.until(k.ContainerStarted, 2)
            (seen,) = await second._runtime.list()
            assert (seen.key.generation, seen.state) == (2, "running")
            assert len(await first._runtime.list()) == 1
        assert [one.identity for one in exits(old) if one.generation == 2] == []


async def test_a_list_from_before_a_takeover_does_not_describe_the_new_machine(
    two: tuple[Node, Node],
) -> None:
    old, new = two
    listed, go_on = asyncio.Event(), asyncio.Event()
    go_on.set()

    class Slow(ProcessRuntime):
        async def list(self) -> list[Seen]:
            seen = await super().list()
            if not go_on.is_set():
                listed.set()
            await go_on.wait()
            return seen

    old.make_runtime = lambda: Slow(NODE, old.root / "containers")
    async with old.agent() as first:
        go_on.clear()
        first._wake.set()
        await listed.wait()
        await lease_over(old)
        async with new.agent() as second:
            assert second.identity.value != first.identity.value
            await old.release()
            await old.until(k.ContainerStarted)
            end = await old.log.end()
            async with first._changed:
                await first._changed.wait_for(lambda: first.desired.seq >= end)
            go_on.set()
            await holds(lambda: joins(old).count(first.identity.value) == 2 and not first._actions.busy)
            await first._outbox.flush()
            assert exits(old) == []


async def test_the_same_folder_is_the_same_machine_and_adopts_containers(two: tuple[Node, Node]) -> None:
    old, new = two
    async with old.working() as first:
        pass
    async with new.agent(joined=False) as other:
        await waits(other, new)
        async with old.agent() as again:
            assert again.identity.value == first.identity.value
            assert not other.joined.is_set()
            assert exits(old) == []
            assert [seen.state for seen in await again._runtime.list()] == ["running"]
