"""Agents whose log, engine, clock or patience fails them: leases end, no node is silent for long, no report is wrong."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from agents import outbox
from agents.runtime.interface import ContainerSpec, Key, Seen, Unavailable, Use
from agents.runtime.process.runtime import ProcessRuntime
from events import kinds as k
from events.log.records import Appended, LogRefused, LogUnavailable
from tests.agents.harness import ended
from tests.agents.one_node import NODE, UNTIL_TERM, Node, holds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from agents.agent import Agent

KEY = Key("app-1", 1, 0)
LEASE_S = 3.0


class Engine(ProcessRuntime):
    """One that a test can keep from answering."""

    silent = False
    removed = False
    """Another program has removed the containers."""
    hangs = False
    """Figures never come."""
    held: asyncio.Event | None = None
    """What a start waits for."""
    ensured = 0

    async def list(self) -> list[Seen]:
        if self.silent:
            raise Unavailable("the engine is away")
        return [] if self.removed else await super().list()

    async def use(self, key: Key) -> Use | None:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().use(key)

    async def ensure(self, spec: ContainerSpec, files: Mapping[str, bytes] | None = None) -> Seen:
        self.ensured += 1
        if self.held is not None:
            await self.held.wait()
        return await super().ensure(spec, files)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    node.make_runtime = lambda: Engine(NODE, tmp_path / "containers")
    yield node
    await node.clean()


def engine_of(agent: Agent) -> Engine:
    assert isinstance(agent._runtime, Engine)
    return agent._runtime


async def leased(node: Node, seconds: float = LEASE_S) -> None:
    await node.say(k.PolicyChanged(heartbeat_s=0.3, node_grace_s=1, node_lease_s=seconds))


def kinds(node: Node) -> list[str]:
    return [type(fact).__name__ for fact in node.facts()]


# the lease


async def test_an_agent_that_was_dead_for_longer_than_the_lease_joins_again(node: Node) -> None:
    """What ran was killed meanwhile, which is not the app's failure, and nothing is started by what was wanted before."""
    await leased(node)
    async with node.working():
        pass
    runtime = Engine(NODE, node.root / "containers")
    await runtime.open()
    await ended(runtime, KEY)
    await runtime.close()
    async with node.agent() as agent:
        exit_ = await node.until(k.ContainerExited)
        assert engine_of(agent).ensured == 0
    assert isinstance(exit_, k.ContainerExited)
    assert (exit_.exit_code, exit_.asked, exit_.killed) == (137, True, False)
    assert "cut off from the log for longer than its lease" in exit_.message
    assert kinds(node) == ["NodeJoined", "ContainerStarted", "NodeJoined", "ContainerExited"]


async def test_the_lease_counts_from_the_stored_heartbeat(node: Node) -> None:
    async with node.agent() as agent:
        await leased(node, 100.0)
        for _ in range(3):
            await node.bus.beats.get()
        left = await agent._runtime.lease_left()
        assert left is not None
        assert 60 < left < 100
        await leased(node, 50.0)  # lowered while it runs; the agent announces it once it is in force here
        told = await node.until(k.NodeJoined, 3)
        assert isinstance(told, k.NodeJoined)
        assert 20 < told.lease_s <= 50
        left = await agent._runtime.lease_left()
        assert left is not None
        assert 20 < left < 50
        node.log.away = True
        await asyncio.sleep(0.2)  # one that was stored may still be extending it
        before = await agent._runtime.lease_left()
        await asyncio.sleep(0.3)
        after = await agent._runtime.lease_left()
        assert before is not None
        assert after is not None
        assert after < before


async def test_a_start_that_was_held_up_until_the_lease_was_over_runs_nothing(node: Node) -> None:
    await leased(node)
    async with node.agent() as agent:
        engine = engine_of(agent)
        engine.held = asyncio.Event()
        await node.release()
        await holds(lambda: engine.ensured == 1)
        node.log.away = True
        await holds(lambda: agent._cut_off)
        await node.decide(k.NodeLost(node=NODE, last_heard=1), k.NodeLeaseEnded(node=NODE, last_heard=1))
        engine.held.set()
        node.log.away = False
        await node.said(lambda facts: sum(isinstance(fact, k.NodeJoined) for fact in facts) == 2)
        assert [seen.state for seen in await engine.list()] == ["created"]
        await node.bus.beats.get()
        assert engine.ensured == 1


async def test_containers_that_ended_on_the_log_get_no_grace(node: Node) -> None:
    """Another generation may run by now."""
    async with node.agent() as agent:
        await node.release(
            'trap "" TERM; echo "{\\"checkpoint\\": 1}" >> "$DORM_PROGRESS"; while :; do sleep 0.05; done'
        )
        await node.until(k.AppCheckpointed)
        await node.decide(k.NodeLost(node=NODE, last_heard=1), k.NodeLeaseEnded(node=NODE, last_heard=1))
        await holds(lambda: all(seen.state == "exited" for seen in agent._seen) and bool(agent._seen))
        assert agent._ledger.asked(KEY) is False


# engines


async def test_an_engine_without_figures_silences_no_node(node: Node) -> None:
    async with node.agent() as agent:
        engine_of(agent).hangs = True
        await node.release()
        await node.until(k.ContainerStarted)
        while not node.bus.beats.empty():
            node.bus.beats.get_nowait()
        for _ in range(2):
            beat = await node.bus.beats.get()
        assert (beat.containers, beat.used) == ([], {})


async def test_a_node_whose_engine_is_away_for_longer_than_the_lease_falls_silent(node: Node) -> None:
    """It is unknown what runs there, so other nodes get its apps; it joins again when its engine is back."""
    await leased(node)
    async with node.working() as agent:
        engine_of(agent).silent = True
        await holds(lambda: agent._cut_off)
        while not node.bus.beats.empty():
            node.bus.beats.get_nowait()
        await asyncio.sleep(0.3)
        assert node.bus.beats.empty()
        engine_of(agent).silent = False
        exit_ = await node.until(k.ContainerExited)
        await node.bus.beats.get()
    assert isinstance(exit_, k.ContainerExited)
    assert exit_.asked
    assert kinds(node)[-2:] == ["NodeJoined", "ContainerExited"]


async def test_a_removed_container_is_reported_with_its_last_output(node: Node) -> None:
    async with node.agent() as agent:
        await node.release('echo "{\\"checkpoint\\": 1}" >> "$DORM_PROGRESS"; ' + UNTIL_TERM)
        await node.until(k.AppCheckpointed)
        runs = engine_of(agent).run_dir(KEY)
        with (runs / "progress.jsonl").open("a") as progress:
            progress.write('{"checkpoint": 2}\n')
        engine_of(agent).removed = True
        agent._wake.set()
        exit_ = await node.until(k.ContainerExited)
    assert isinstance(exit_, k.ContainerExited)
    assert (exit_.reason, exit_.exit_code) == ("lost", None)
    assert [fact.step for fact in node.facts() if isinstance(fact, k.AppCheckpointed)] == [1, 2]


# the outbox


async def test_a_full_outbox_delays_reporters_and_not_heartbeats(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is reported once and in order when there is room again."""
    monkeypatch.setattr(outbox, "BOUND", 4)
    go = node.root / "go"
    tell = 'tell() { echo "{\\"checkpoint\\": $1}" >> "$DORM_PROGRESS"; };'

    def steps() -> list[int]:
        return [fact.step for fact in node.facts() if isinstance(fact, k.AppCheckpointed)]

    # Slower than the agent looks: between two looks, only the newest report becomes a fact.
    many = f"tell 0; while ! [ -e {go} ]; do sleep 0.02; done; for i in 1 2 3 4 5 6 7 8 9; do sleep 0.5; tell $i; done;"
    async with node.agent() as agent:
        await node.release(f"{tell} {many} {UNTIL_TERM}")
        await node.until(k.AppCheckpointed)
        stored = node.log.append

        async def refuses(*_: object, **__: object) -> None:
            raise LogUnavailable("no room")

        node.log.append = refuses  # type: ignore[method-assign, assignment]
        go.touch()
        await holds(lambda: agent._outbox.waiting == 5)
        while not node.bus.beats.empty():
            node.bus.beats.get_nowait()
        for _ in range(3):
            await node.bus.beats.get()
        node.log.append = stored  # type: ignore[method-assign]
        await holds(lambda: steps()[-1] == 9)
    assert steps() == sorted(set(steps()))


# clocks


async def test_a_clock_that_is_set_changes_nothing(node: Node) -> None:
    """By hours, back and forth: no report is repeated or dropped, and logs of ended containers are kept."""
    hour = 3600 * 10**9
    steps = [0]
    node.clock = lambda: time.time_ns() + steps[0]
    await node.say(k.PolicyChanged(retention_s=3600.0))
    async with node.agent() as agent:
        for count, step in enumerate((0, -100 * hour, 5000 * hour, -1), start=1):
            steps[0] = step
            await node.release("exit 3", app=f"app-{count}")
            await node.until(k.ContainerExited, count)
            await node.bus.beats.get()
        agent._wake.set()
        await asyncio.sleep(0.1)
        assert len(await agent._runtime.list()) == 4
    async with node.agent():
        pass
    assert kinds(node).count("NodeJoined") == 3, (
        "twice when it starts, and once as it serves only one tenant from then on"
    )
    assert kinds(node).count("ContainerExited") == 4


async def test_facts_that_the_log_refuses_are_published_when_it_accepts_them(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose disk is full refuses for a while; the last progress is kept like any other fact."""
    monkeypatch.setattr(outbox, "_REFUSED_S", 0.05)
    refused: list[str] = []
    stored = node.log.append

    async def refuses(subject: str, body: bytes, **how: Any) -> Appended:
        if ".App" in subject and len(refused) < 3:
            refused.append(subject)
            raise LogRefused("insufficient resources")
        return await stored(subject, body, **how)

    node.log.append = refuses  # type: ignore[method-assign]
    async with node.agent():
        await node.release('echo "{\\"step\\": 70}" >> "$DORM_PROGRESS"; exit 0')
        await node.until(k.ContainerExited)
    assert len(refused) == 3
    assert [fact.step for fact in node.facts() if isinstance(fact, k.AppProgressed)] == [70]
