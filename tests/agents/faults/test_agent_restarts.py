"""An agent's memory across restarts, and its reaction to another log than the one it knew."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agents import following
from agents.ledger import Ledger
from agents.runtime.interface import Key
from agents.runtime.process.runtime import ProcessRuntime
from events import kinds as k
from events.log.records import LogDamaged, Record
from tests.agents.folding import desired_of
from tests.agents.harness import look
from tests.agents.one_node import CLUSTER, NODE, UNTIL_TERM, Node, holds
from tests.errors import codes_in, raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agents.desired import Desired

KEY = Key("app-1", 1, 0)
TELL = 'echo "{\\"checkpoint\\": 1}" >> "$DORM_PROGRESS"; while :; do sleep 0.05; done'
POLITE, STUBBORN = f'trap "exit 0" TERM; {TELL}', f'trap "" TERM; {TELL}'


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.clean()


async def running(node: Node) -> list[Key]:
    """What runs on the machine, agent or not."""
    runtime = ProcessRuntime(NODE, node.root / "containers")
    await runtime.open()
    found = [seen.key for seen in await runtime.list() if seen.state == "running"]
    await runtime.close()
    return found


# what was folded


async def lived(node: Node) -> Desired:
    """One agent's life with one container; what it had folded in the end.  Its node is then the container's tenant's."""
    async with node.working() as agent:
        await node.until(k.NodeJoined, 2)
        await holds(lambda: agent.desired.seq == len(node.log.records))
        return agent.desired


async def test_a_restart_folds_only_later_records(node: Node) -> None:
    before = await lived(node)
    said = len(node.facts())
    async with node.agent() as agent:
        assert node.log.read_after == [0, before.seq]
        assert (agent.desired.apps, agent.desired.due, agent.desired.started) == (before.apps, {KEY}, {KEY})
        await holds(lambda: agent.desired.part_seq == len(node.log.records))
        whole = desired_of(node.log.records, NODE, cluster=CLUSTER)
        for name in ("apps", "due", "started", "exited", "condition", "holder", "times"):
            assert getattr(agent.desired, name) == getattr(whole, name)
    assert [type(fact).__name__ for fact in node.facts()[said:]] == ["NodeJoined"], "nothing is said twice"


def flipped(kept: bytes) -> bytes:
    return kept[:-20] + bytes([kept[-20] ^ 1]) + kept[-19:]


@pytest.mark.parametrize(
    "doctored",
    [
        flipped,
        lambda kept: kept[:-1],
        lambda kept: b"",
        lambda kept: kept.replace(b"node-1", b"node-2", 1),
        lambda kept: msgspec.msgpack.encode([*msgspec.msgpack.decode(kept)[:2], "0" * 16, *msgspec.msgpack.decode(kept)[3:]]),
        lambda kept: msgspec.msgpack.encode([*msgspec.msgpack.decode(kept)[:4], "0" * 32, *msgspec.msgpack.decode(kept)[5:]]),
    ],
    ids=["a bit", "cut", "empty", "another node's", "other sources", "another log's"],
)  # fmt: skip
async def test_an_invalid_file_is_not_used(node: Node, doctored: object) -> None:
    await lived(node)
    file = node.root / "agent" / "desired"
    assert callable(doctored)
    file.write_bytes(doctored(file.read_bytes()))
    async with node.agent() as agent:
        assert node.log.read_after == [0, 0]
        assert agent.desired.started == {KEY}


async def test_unstored_facts_are_not_remembered_as_published(node: Node) -> None:
    """An agent that ends while facts wait in its outbox publishes them when it is back."""
    async with node.working() as agent:
        node.log.away = True
        await node.release("exit 3", app="app-2")
        await holds(lambda: KEY._replace(app="app-2") in agent.desired.exited)
    node.log.away = False
    async with node.agent():
        exit_ = await node.until(k.ContainerExited)
    assert isinstance(exit_, k.ContainerExited)
    assert (exit_.app, exit_.exit_code, exit_.asked) == ("app-2", 3, False)
    assert len(node.facts()) == len({fact.id for fact in node.facts()})


# other logs


async def test_a_log_that_was_cut_stops_the_agent_and_nothing_else(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await lived(node)
    monkeypatch.setattr(following, "DOUBT_S", 0.5)
    cut = Node(node.root, records=node.log.records[:2])
    with raises(LogDamaged, "log.another", "record 2"):
        async with cut.agent():
            pass
    assert await running(node) == [KEY]
    assert len(cut.log.records) == 2, "it did not even join"


async def test_a_log_that_is_cut_meanwhile_stops_the_agent_and_nothing_else(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "DOUBT_S", 0.5)

    async def damaged(**_: object) -> AsyncIterator[list[Record]]:
        raise LogDamaged("the log ends at 3, before 7")
        yield []

    await lived(node)
    again = Node(node.root, records=node.log.records)
    again.log.read = damaged  # type: ignore[method-assign, assignment]
    (node.root / "agent" / "desired").unlink()
    with pytest.raises(ExceptionGroup) as raised:
        async with again.agent():
            pass
    assert codes_in(raised.value) == ["log.another"]
    assert await running(node) == [KEY]


async def test_a_server_that_is_behind_is_asked_again(node: Node) -> None:
    """One of several, which was cut off and does not know it yet."""
    read, doubts = node.log.read, 2

    async def behind(**how: Any) -> AsyncIterator[list[Record]]:
        nonlocal doubts
        if how.get("follow") and how.get("subjects") and doubts:
            doubts -= 1
            raise LogDamaged("the log ends at 3, before 7")
        async with contextlib.aclosing(read(**how)) as batches:
            async for batch in batches:
                yield batch

    node.log.read = behind  # type: ignore[method-assign, assignment]
    async with node.working():
        pass
    assert not doubts


async def test_an_idle_node_joins_a_recreated_cluster(node: Node) -> None:
    await lived(node)
    await node.clean()
    anew = Node(node.root)
    async with anew.agent():
        assert anew.log.read_after == [0]


# progress


async def test_checkpoints_during_an_outage_are_reported_once_even_if_the_agent_ends_in_it(node: Node) -> None:
    """Reported ones are not repeated, others are not lost, in the order of their lines."""
    go = node.root / "go"
    tell = 'tell() { echo "{\\"$1\\": $2}" >> "$DORM_PROGRESS"; };'
    three = "for i in 1 2 3; do tell step $i; tell checkpoint $i; done;"
    script = f"{tell} {three} while ! [ -e {go} ]; do sleep 0.02; done; tell checkpoint 4; {UNTIL_TERM}"

    def checkpoints() -> list[int]:
        return [fact.step for fact in node.facts() if isinstance(fact, k.AppCheckpointed)]

    async with node.agent() as agent:
        await node.release(script)
        await holds(lambda: 3 in checkpoints())
        node.log.away = True
        go.touch()
        await holds(lambda: agent._outbox.waiting == 1)
    node.log.away = False
    for _ in range(2):
        async with node.agent():
            await holds(lambda: 4 in checkpoints())
    steps = checkpoints()
    assert steps == sorted(set(steps))
    assert steps[-2:] == [3, 4]
    progress = [fact.step for fact in node.facts() if isinstance(fact, k.AppProgressed)]
    assert progress == sorted(set(progress))


# asked, killed


async def halted(node: Node, script: str) -> k.ContainerExited:
    """Run it, then decide on another generation."""
    async with node.agent():
        await node.release(script)
        await node.until(k.AppCheckpointed)  # it is ready to be asked
        await node.resize("app-1", 2, 1)
        exit_ = await node.until(k.ContainerExited)
    assert isinstance(exit_, k.ContainerExited)
    return exit_


@pytest.mark.parametrize(
    ("script", "code", "killed"),
    [(POLITE, 0, False), (STUBBORN, 137, True)],
    ids=["polite", "stubborn"],
)
async def test_whether_it_was_killed_is_reported(node: Node, script: str, code: int, killed: bool) -> None:
    exit_ = await halted(node, script)
    assert (exit_.exit_code, exit_.asked, exit_.killed) == (code, True, killed)


async def test_a_full_disk_of_the_agent_neither_keeps_apps_alive_nor_makes_them_done(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Ledger, key: Key) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Ledger, "note_asked", full)
    exit_ = await halted(node, POLITE)
    assert (exit_.exit_code, exit_.asked) == (0, True)


async def test_a_lost_note_of_a_dead_agent_does_not_make_an_app_done(node: Node) -> None:
    async with node.agent():
        await node.release(POLITE)
        await node.until(k.AppCheckpointed)  # it is ready to be asked
    runtime = ProcessRuntime(NODE, node.root / "containers")
    await runtime.open()
    await runtime.stop(KEY, 5.0)  # as the agent had done, whose note the disk did not take
    seen = await look(runtime, KEY)
    assert seen is not None
    assert seen.exit_code == 0
    await runtime.close()
    await node.resize("app-1", 2, 1)
    async with node.agent():
        exit_ = await node.until(k.ContainerExited)
    assert isinstance(exit_, k.ContainerExited)
    assert exit_.asked
