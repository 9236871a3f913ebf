"""The parts that masters write: when, for which nodes, by which master, and what is never overwritten."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from dorm.core.evolve import evolve
from dorm.core.folded import NODE, Folded
from dorm.core.parts.deriving import part_of
from dorm.core.state import State
from dorm.master.parts import PartWriter
from events import kinds as k
from events import subjects
from events.chain import SealKey, new_seed
from events.codec import encode
from events.log.memory import MemoryLog
from events.log.records import LogUnavailable
from events.log.stores import MemoryParts
from events.parts import document_of, is_part_signed_by, packed, unpacked
from replay.audit.parts_checks import verify_parts
from tests.agents.one_node import holds
from tests.core.records import document, joined
from tests.master.test_master_seals import CLUSTER, leading
from tests.master.test_master_trust import client, cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from events.parts import NodePart

PATIENCE_S = 20.0


async def until(log: MemoryLog, node: str, holds: Callable[[NodePart], bool]) -> NodePart:
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(log.parts.follow(node)) as parts:
        async for stored in parts:
            part, _ = unpacked(stored.body)
            if holds(part):
                return part
    raise AssertionError


async def test_a_nodes_part_is_signed_and_equals_the_one_that_replay_derives() -> None:
    key = SealKey(new_seed())
    log = await cluster(key)
    async with leading(log, "m1", key):
        app = await client(log, "ann").submit(document("train"))
        part = await until(log, "n1", lambda part: app.id in part.apps and part.apps[app.id].released)
        assert part.condition == "up"
        assert part.apps[app.id].tenant == "ann"
        assert {one.state for one in part.apps[app.id].containers} == {"desired"}
        stored = await log.parts.last("n1")
        assert stored is not None
        _, signed = unpacked(stored.body)
        assert is_part_signed_by(signed.document, signed.signature, [key.public])
        assert not is_part_signed_by(signed.document, signed.signature, [SealKey(new_seed()).public])
        report = await verify_parts(log)
        assert (report.checked, report.wrong, report.missing) == (1, [], [])


@pytest.mark.parametrize("how", ["content", "signature", "place"])
async def test_replay_notices_a_part_that_contradicts_the_log(how: str) -> None:
    key = SealKey(new_seed())
    log = await cluster(key)
    async with leading(log, "m1", key):
        await until(log, "n1", lambda part: part.condition == "up")
    stored = log.parts.stored["n1"]
    part, signed = unpacked(stored.body)
    forged = {
        "content": packed(signed.document.replace(b"lost", b"left").replace(b"up", b"xx"), signed.signature),
        "signature": packed(signed.document, "00" * 64),
        "place": packed(signed.document[:-1], signed.signature),
    }[how]
    assert part.node == "n1"
    log.parts.stored["n1"] = stored._replace(body=forged)
    report = await verify_parts(log)
    assert [one.node for one in report.wrong] == ["n1"]


def folded(log: MemoryLog) -> State:
    state = State()
    for record in log.records:
        evolve(state, record)
    return state


async def open_log() -> MemoryLog:
    log = MemoryLog(time.time_ns)
    await log.append(subjects.fact(CLUSTER, "NodeJoined", "n1"), encode(joined("n1")))
    return log


@contextlib.asynccontextmanager
async def _writing(writer: PartWriter, state: State) -> AsyncIterator[None]:
    task = asyncio.create_task(writer.run(lambda: state))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_deposed_master_never_overwrites_a_later_part() -> None:
    """Its state ends before its successor's, and so does any part that it derives."""
    log = await open_log()
    old = folded(log)
    await log.append(subjects.fact(CLUSTER, "PolicyChanged", "op"), encode(k.PolicyChanged(node_lease_s=60.0)))
    new = folded(log)
    deposed, successor = PartWriter(log.parts, CLUSTER, None), PartWriter(log.parts, CLUSTER, None)
    async with _writing(deposed, old):
        await until(log, "n1", lambda part: part.seq == old.seq)
        async with _writing(successor, new):
            await until(log, "n1", lambda part: part.seq == new.seq)
            revision = log.parts.stored["n1"].revision
            record = log.records[0]
            deposed.see(old, record, Folded(joined("n1"), NODE))  # It is asked for the part again.
            await holds(lambda: not deposed._concerned.nodes and not deposed._wake.is_set())
    assert log.parts.stored["n1"].revision == revision


class Flaky(MemoryParts):
    """Each first try of a write has no answer, though every other one of these is stored."""

    tries = 0

    async def put(self, node: str, body: bytes, expected: int) -> int:
        self.tries += 1
        if self.tries % 4 == 1:
            await super().put(node, body, expected)
        if self.tries % 2:
            raise LogUnavailable("no answer")
        return await super().put(node, body, expected)


async def test_a_write_without_an_answer_is_tried_again() -> None:
    log = await open_log()
    parts = Flaky()
    state = folded(log)
    async with _writing(PartWriter(parts, CLUSTER, None), state):
        await holds(lambda: parts.tries >= 2)
        last = await parts.last("n1")
    assert last is not None
    assert unpacked(last.body)[1].document == document_of(part_of(state, CLUSTER, "n1"))
