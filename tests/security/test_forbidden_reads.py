"""Messages that no role may receive or read, against a real server; who answers for whom, and whose own part is whose.

Each attack has a control: the same request by an authorized user is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from events.log.records import LogRefused, LogUnavailable
from events.nats.reader import Reader
from events.subjects import ask_agents, ask_masters
from tests.errors import raises
from tests.security.hostile import CLUSTER, EVERYONE, LEASE, LOG, SNAPSHOTS, Guarded, body_of, consumers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.log.interface import Answerer

pytestmark = [pytest.mark.nats, pytest.mark.asyncio(loop_scope="module")]


async def test_no_one_receives_messages_for_others(guarded: Guarded) -> None:
    everywhere = [
        ">",
        "_INBOX.>",
        "_INBOX.user.>",
        "_R_.>",
        f"dorm.{CLUSTER}.>",
        "$JS.>",
        "$KV.>",
        "$SYS.>",
        "DORMJS.>",
    ]
    of_others = [f"_INBOX.user.{name}.>" for name in ("alice", "bob", "rita")]
    of_others += [
        "_INBOX.node.node-2.>",
        "_INBOX.master.master.>",
        "_INBOX.admin.root.>",
        f"dorm.{CLUSTER}.ask.node-2.logs.*",
        f"dorm.{CLUSTER}.ask.*.logs.alice",
    ]
    of_views = [f"dorm.{CLUSTER}.view.*.log", f"dorm.{CLUSTER}.view.bob.log"]
    for name in ("alice", "olga", "api", "node-1", "node-3", "master"):
        own = guarded.credentials[name].inbox + ".>"
        tried = {*everywhere, *of_others, *(of_views if name != "master" else ())} - {own}
        async with guarded.attacker(name) as one:
            for subject in sorted(tried):
                await one.client.subscribe(subject)
            heard = await one.client.subscribe(own)
            await one.taken()
            assert set(one.forbidden) == {subject.lower() for subject in tried}
            if name != "node-3":
                # The control: what is for oneself arrives.
                await one.client.publish(f"{_api(name)}.STREAM.INFO.{LEASE}", b"", reply=own.replace(">", "mine"))
                assert (await heard.next_msg(timeout=5)).data


def _api(name: str) -> str:
    return "$JS.API" if EVERYONE[name] in ("admin", "master") else "DORMJS"


async def test_only_a_node_answers_for_itself_and_only_its_tenants_users_ask(guarded: Guarded) -> None:
    """The subject names the tenant, and the server lets ask for alice's output alice and those who may read all."""

    def answerer_of(subject: str) -> Answerer:
        async def answer(question: bytes) -> AsyncIterator[bytes]:
            yield b"lines of " + question + subject.rpartition(".")[2].encode()

        return answer

    node_1 = f"dorm.{CLUSTER}.ask.node-1.logs.*"
    subject = f"dorm.{CLUSTER}.ask.node-1.logs.alice"
    async with guarded.connection("node-1") as node, guarded.connection("node-2") as other:
        with raises(LogRefused, "log.no_permission") as refused:
            await other.bus.answer_each(node_1, answerer_of)
        assert f"node node-2 to listen on {node_1}" in str(refused.value)
        answering = asyncio.create_task(node.bus.answer_each(node_1, answerer_of))
        for name, role in EVERYONE.items():
            if role in ("joining", "node"):
                continue
            async with guarded.connection(name) as one:
                if role == "master" or name == "bob":
                    with raises(LogRefused, "log.no_permission"):
                        [piece async for piece in one.bus.ask(subject, b"")]
                else:
                    assert [piece async for piece in one.bus.ask(subject, b"")] == [b"lines of alice"]
        answering.cancel()


async def test_users_ask_for_the_status_of_masters_and_agents_and_no_one_else_answers(guarded: Guarded) -> None:
    async def answerer(question: bytes) -> AsyncIterator[bytes]:
        yield b"well"

    masters, agents = ask_masters(CLUSTER), ask_agents(CLUSTER)
    async with guarded.connection("master") as master, guarded.connection("node-1") as node:
        for stranger, subject in ((master, agents), (node, masters)):
            with raises(LogRefused, "log.no_permission"):
                await stranger.bus.answer(subject, answerer)
        answering = [
            asyncio.create_task(one.bus.answer(subject, answerer))
            for one, subject in ((master, masters), (node, agents))
        ]
        for name, role in EVERYONE.items():
            if role == "joining":
                continue
            async with guarded.connection(name) as one:
                for subject in (masters, agents):
                    if role in ("master", "node"):
                        with raises(LogRefused, "log.no_permission"):
                            await one.everyone(subject, wait_s=0.2)
                    else:
                        async with asyncio.timeout(20):
                            while not (said := await one.everyone(subject, wait_s=0.2)):
                                pass
                        assert [answer.body for answer in said] == [b"well"]
        for task in answering:
            task.cancel()


async def test_a_node_reads_its_own_part_and_no_other(guarded: Guarded) -> None:
    async with guarded.connection("master") as master:
        for node in ("node-1", "node-2"):
            there = await master.log.parts.last(node)
            await master.log.parts.put(node, node.encode(), there.revision if there is not None else 0)
    async with guarded.connection("node-1") as one_node:
        async with contextlib.aclosing(one_node.log.parts.follow("node-1")) as own:
            assert (await asyncio.wait_for(anext(own), 20.0)).body == b"node-1"
        with raises(LogRefused, "log.no_permission"):
            await one_node.log.parts.put("node-1", b"mine", 1)
    stream = f"DORM_parts-{CLUSTER}"
    for name in ("node-1", "alice"):
        async with guarded.attacker(name) as one:
            tried = [
                f"DORMJS.{verb}"
                for verb in (
                    f"CONSUMER.CREATE.{stream}.x.dorm.{CLUSTER}.part.node-2.*",
                    f"CONSUMER.CREATE.{stream}.x.dorm.{CLUSTER}.part.*.*",
                    f"CONSUMER.CREATE.{stream}.x",
                    f"CONSUMER.CREATE.{stream}",
                    f"CONSUMER.DURABLE.CREATE.{stream}.x",
                    f"STREAM.MSG.GET.{stream}",
                    f"DIRECT.GET.{stream}",
                    f"DIRECT.GET.{stream}.dorm.{CLUSTER}.part.node-2.0",
                )
            ]
            for subject in tried:
                await one.client.publish(subject, b"{}", reply=guarded.credentials[name].inbox + ".x")
            await one.taken()
            assert set(one.forbidden) == {subject.lower() for subject in tried}
    # The control: who may read the log may read all parts.
    async with guarded.connection("rita") as reader:
        assert [part.node for part in await reader.log.parts.all()] == ["node-1", "node-2"]


async def test_a_reader_with_all_consumers_blocks_no_other_reader(guarded: Guarded) -> None:
    """A stream has room for a limited number of consumers in all.  Others then read without one, and people have none of the
    stream that nodes get their parts from."""
    subject = f"dorm.{CLUSTER}.AppSubmitted.root"
    async with guarded.attacker("root") as root, guarded.attacker("rita") as rita:
        config = (await root.api(f"$JS.API.STREAM.INFO.{LOG}", {}))["config"]
        for name in await consumers(root):
            await root.api(f"$JS.API.CONSUMER.DELETE.{LOG}.{name}", {})
        for number in range(600):
            await root.client.jetstream().publish(subject, b"crowd", headers={"Nats-Msg-Id": f"crowd.{number}"})
        updated = await root.api(f"$JS.API.STREAM.UPDATE.{LOG}", config | {"max_consumers": 5})
        assert updated["config"]["max_consumers"] == 5
        taken = 0
        refused: dict[str, Any] = {}
        while not refused:
            theirs = {"name": f"crowd{taken}", "ack_policy": "none", "inactive_threshold": 60_000_000_000}
            question = {"stream_name": LOG, "config": theirs}
            answer = await rita.api(f"DORMJS.CONSUMER.CREATE.{LOG}.crowd{taken}", question)
            refused, taken = answer.get("error", {}), taken + 1
        assert (refused["err_code"], taken) == (10026, 6)
        stream = f"DORM_parts-{CLUSTER}"
        for verb in (f"CONSUMER.CREATE.{stream}.x", f"CONSUMER.CREATE.{stream}.x.>", f"CONSUMER.DELETE.{stream}.x"):
            await rita.client.publish(f"DORMJS.{verb}", b"{}", reply=guarded.credentials["rita"].inbox + ".x")
        await rita.taken()
        assert len(rita.forbidden) == 3
        for name in ("master", "olga", "node-1"):
            async with guarded.connection(name) as one, asyncio.timeout(30):
                end = await one.log.end()
                assert [record.seq async for batch in one.log.read() for record in batch] == list(range(1, end + 1))
                only = [record async for batch in one.log.read(subjects=[subject]) for record in batch]
                assert sum(record.body == b"crowd" for record in only) == 600
                async with contextlib.aclosing(one.log.read(after=end, follow=True)) as following:
                    news = asyncio.ensure_future(anext(following))
                    await root.client.jetstream().publish(subject, name.encode())
                    assert [record.body for record in await news] == [name.encode()]
        async with guarded.connection("master") as one:
            raw = one.stream
            with raises(LogUnavailable, "log.readers.too_many"):
                async with Reader(raw._link, LOG, 0, []):
                    pass
        for number in range(taken):
            await root.api(f"$JS.API.CONSUMER.DELETE.{LOG}.crowd{number}", {})
        await root.api(f"$JS.API.STREAM.UPDATE.{LOG}", config)


async def test_a_node_stores_its_own_progress_and_readers_of_the_log_read_it(guarded: Guarded) -> None:
    async with guarded.connection("node-1") as node, guarded.connection("rita") as rita:
        before = await rita.log.progress.end()
        await node.log.progress.put(f"dorm.{CLUSTER}.progress.node-1.a-1", b"one")
        for subject in (f"dorm.{CLUSTER}.progress.node-2.a-1", f"dorm.{CLUSTER}.progress.node-2.b-1"):
            with raises(LogRefused, "log.no_permission"):
                await node.log.progress.put(subject, b"another's")
        with raises(LogRefused, "log.no_permission"):
            await rita.log.progress.put(f"dorm.{CLUSTER}.progress.node-1.a-1", b"a reader's")
        assert [one.body for one in await rita.log.progress.newest("a-1")][-1] == b"one"
        async with asyncio.timeout(20), contextlib.aclosing(rita.log.progress.read(after=before, follow=True)) as read:
            assert [one.body for one in await anext(read)] == [b"one"]
            await node.log.progress.put(f"dorm.{CLUSTER}.progress.node-1.a-1", b"two")
            assert [one.body for one in await anext(read)] == [b"two"]


READS = [
    "STREAM.INFO.{stream}", "STREAM.MSG.GET.{stream}", "DIRECT.GET.{stream}", "CONSUMER.CREATE.{stream}.theirs",
    "CONSUMER.CREATE.{stream}.theirs.{subject}", "CONSUMER.DURABLE.CREATE.{stream}.theirs", "CONSUMER.INFO.{stream}.theirs",
    "CONSUMER.MSG.NEXT.{stream}.theirs", "DIRECT.GET.{stream}.{subject}", "CONSUMER.LIST.{stream}", "CONSUMER.NAMES.{stream}",
]  # fmt: skip
"""Every question of JetStream by which a stream's messages, or their subjects, can be read."""


async def test_a_plain_user_reads_no_stream(guarded: Guarded, record_property: Any) -> None:
    streams = {
        LOG: f"dorm.{CLUSTER}.AppSubmitted.bob",
        SNAPSHOTS: f"dorm.{CLUSTER}.snapshot.index.all",
        f"DORM_progress-{CLUSTER}": f"dorm.{CLUSTER}.progress.node-1.app",
        f"DORM_parts-{CLUSTER}": f"dorm.{CLUSTER}.part.node-1",
        f"DORM_reports-{CLUSTER}": f"dorm.{CLUSTER}.report.node-1.NodeReported",
    }
    questions = [
        f"{prefix}.{verb.format(stream=stream, subject=subject)}"
        for stream, subject in streams.items()
        for verb in READS
        for prefix in ("$JS.API", "DORMJS")
    ]
    async with guarded.attacker("alice") as alice:
        for question in questions:
            await alice.client.publish(question, body_of("STREAM.MSG.GET"), reply=alice.client.new_inbox())
        await alice.taken()
        assert set(alice.forbidden) == {question.lower() for question in questions}
        others = [f"dorm.{CLUSTER}.view.{name}.log" for name in ("bob", "rita", "root", "*")]
        for subject in others:
            await alice.client.publish(subject, b"{}", reply=alice.client.new_inbox())
        await alice.taken()
        assert {subject for subject in alice.forbidden if ".view." in subject} == {one.lower() for one in others}
    record_property("reads_tried", len(questions) + len(others))
    # The control: a reader asks all of what a reader needs.
    async with guarded.connection("root") as root, guarded.connection("rita") as rita:
        stored = await root.log.append(f"dorm.{CLUSTER}.AppSubmitted.root", b"a spec")
        assert await rita.log.end() >= stored.seq
        found = await rita.log.record_at(stored.seq)
        assert found is not None
        assert found.body == b"a spec"
