"""Every forbidden act by every role, against a real server: each is refused at the culprit, and changes nothing.

The table of what is allowed is written by hand, and not derived from `dorm.security.roles`, which it judges.  Each attack has
a control: the same act by one who may, or where it can work, does work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, get_args

import nats.errors
import pytest
import pytest_asyncio

from events import kinds as k
from events.kinds.messages import Published
from events.log.records import LogRefused, LogUnavailable
from events.nats.reader import Reader
from events.subjects import ask_agents, ask_masters
from tests.errors import raises
from tests.security.hostile import CLUSTER, EVERYONE, Guarded, consumers, witness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.log.interface import Answerer

pytestmark = [pytest.mark.nats, pytest.mark.asyncio(loop_scope="module")]

LOG, LEASE, SNAPSHOTS = f"DORM-{CLUSTER}", f"KV_DORM_leadership-{CLUSTER}", f"DORM_snapshots-{CLUSTER}"
LEASE_KEY = f"$KV.DORM_leadership-{CLUSTER}.master"
ROUND = f"dorm.{CLUSTER}.round.master"
KINDS = sorted({kind.__name__ for kind in get_args(Published)} - {"NodeReported", "Round"})
USER = {
    "AppSubmitted", "AppUpdated", "AppCancelRequested", "AppRetryRequested", "AppHoldRequested", "AppReleaseRequested",
    "AppEditRequested", "AppRestartRequested",
    "TokenAdded", "TokenRemoved",
}  # fmt: skip
OPERATOR = USER | {
    "NodeDrainRequested", "NodeForgetRequested", "SchedulingPaused", "SchedulingResumed", "PolicyChanged", "SealRequested",
    "RotationRequested", "WebhookSet", "WebhookRemoved", "WebhookTestRequested",
}  # fmt: skip
NODE = {
    "NodeJoined", "NodeLeft", "NodeDrainRequested", "ContainersPrepared", "ContainerStarted", "ContainerExited",
    "AppCheckpointed", "AppProgressed", "ProgressLinesSkipped", "AppResizeRequested", "MembershipChanged",
    "EpochCompleted", "SessionStarted", "SessionEnded",
}  # fmt: skip
OWN = {
    "reader": {"TokenAdded", "TokenRemoved"}, "user": USER, "operator": OPERATOR, "api": OPERATOR, "node": NODE,
    "admin": {*KINDS, "round"}, "master": {"LogRotated", "RotationFailed"}, "joining": set(),
}  # fmt: skip
"""What each role may publish in its own name.  (`round` of an admin is no round: those are on `round.master` alone.)"""
DELIVERIES = {"AppWaitsLong", "WebhookTested", "WebhookDisabled"}
"""What the reader that deliverers of webhooks run as publishes as well."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    server = Guarded(tmp_path_factory.mktemp("guarded"))
    await server.start()
    yield server
    server.stop()


def subjects() -> dict[str, tuple[str, str]]:
    """Return every subject to try, with kind and author."""
    found = {
        f"dorm.{CLUSTER}.{kind}.{author}": (kind, author)
        for kind in (*KINDS, "round")
        for author in ("root", "master", "api", "alice", "bob", "rita", "webhooks", "olga", "node-1", "node-2")
    }
    found |= {f"dorm.{CLUSTER}.report.{node}.NodeReported": ("report", node) for node in ("node-1", "node-2")}
    found |= {f"dorm.{CLUSTER}.progress.{node}.a-1": ("report", node) for node in ("node-1", "node-2")}
    found[LEASE_KEY] = ("lease", "master")
    found |= {f"dorm.{CLUSTER}.snapshot.{which}": ("snapshot", "master") for which in ("index.all", "body.x.0")}
    found |= {f"dorm.{CLUSTER}.part.{node}.0": ("part", "master") for node in ("node-1", "node-2")}
    found |= {f"dorm.{CLUSTER}.shadow.dorm.{name}": ("shadow", name) for name in ("root", "alice", "olga")}
    return found


def may(name: str, kind: str, author: str) -> bool:
    role = EVERYONE[name]
    if role == "master":
        return author == "master" and kind in ("round", "lease", "snapshot", "part", *OWN["master"])
    if kind == "report":
        return role == "node" and author == name
    if kind == "shadow":
        return role == "api" or (role in ("operator", "admin") and author == name)
    if kind in ("lease", "snapshot", "part"):
        return False
    own = OWN[role] | (DELIVERIES if name == "webhooks" else set())
    return kind in own and (author == name or role == "api")


async def test_everyone_publishes_what_the_table_says_and_nothing_else(guarded: Guarded, record_property: Any) -> None:
    tried = done = 0
    for name in EVERYONE:
        allowed = {subject for subject, (kind, author) in subjects().items() if may(name, kind, author)}
        async with guarded.attacker(name) as one:
            for subject in subjects():
                await one.client.publish(subject, name.encode())
            await one.taken()
            forbidden = {subject.lower() for subject in subjects()} - {subject.lower() for subject in allowed}
            assert set(one.forbidden) == forbidden
        tried += len(forbidden)
        stored = await _stored(guarded, name)
        done += len(stored - allowed)
        assert stored == allowed
    record_property("forbidden_acts_tried", tried)
    record_property("forbidden_acts_done", done)
    assert tried > 1500


async def _stored(guarded: Guarded, name: str) -> set[str]:
    """Return the subjects of the messages whose body is this name, in all streams."""
    found: set[str] = set()
    async with guarded.attacker("root") as root:
        for stream in (await root.api("$JS.API.STREAM.NAMES", {}))["streams"]:
            source = await root.client.jetstream().subscribe("", stream=stream, ordered_consumer=True)
            info = await root.client.jetstream().stream_info(stream)
            for _ in range(info.state.messages):
                message = await source.next_msg(timeout=5)
                if message.data == name.encode():
                    found.add(message.subject)
            await source.unsubscribe()
    return found


VERBS = [
    "INFO", "STREAM.NAMES", "STREAM.LIST", "CONSUMER.NAMES.{log}", "CONSUMER.LIST.{log}", "STREAM.INFO.{log}",
    "STREAM.DELETE.{log}", "STREAM.PURGE.{log}", "STREAM.UPDATE.{log}", "STREAM.CREATE.theirs", "STREAM.MSG.GET.{log}",
    "STREAM.MSG.DELETE.{log}", "STREAM.SNAPSHOT.{log}", "STREAM.RESTORE.theirs", "STREAM.LEADER.STEPDOWN.{log}",
    "STREAM.PEER.REMOVE.{log}", "STREAM.DELETE.{lease}", "STREAM.PURGE.{lease}", "STREAM.MSG.DELETE.{lease}",
    "STREAM.PURGE.{snapshots}", "CONSUMER.INFO.{log}.theirs", "CONSUMER.CREATE.{log}", "CONSUMER.CREATE.{log}.theirs",
    "CONSUMER.CREATE.{lease}.theirs", "CONSUMER.DURABLE.CREATE.{log}.theirs", "CONSUMER.MSG.NEXT.{log}.theirs",
    "CONSUMER.LEADER.STEPDOWN.{log}.theirs", "CONSUMER.PAUSE.{log}.theirs", "DIRECT.GET.{log}", "DIRECT.GET.{lease}",
    "DIRECT.GET.{snapshots}.dorm.lab.snapshot.index.all", "META.LEADER.STEPDOWN", "ACCOUNT.PURGE.LOG",
]  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "STREAM.CREATE": {"name": "theirs", "subjects": ["theirs.>"]},
    "STREAM.UPDATE": {"name": LOG, "subjects": [f"dorm.{CLUSTER}.*.*"], "max_msgs": 1},
    "STREAM.MSG.GET": {"seq": 1},
    "STREAM.MSG.DELETE": {"seq": 1},
    "CONSUMER": {"stream_name": LOG, "config": {"name": "theirs", "durable_name": "theirs", "ack_policy": "explicit"}},
    "CONSUMER.MSG": {"batch": 10, "expires": 100_000_000},
    "DIRECT.GET": {"seq": 1},
}
REPLIES = [
    ROUND, f"dorm.{CLUSTER}.NodeDrainRequested.root", f"$JS.API.STREAM.DELETE.{LOG}", LEASE_KEY,
    f"dorm.{CLUSTER}.snapshot.index.all", "_INBOX.user.bob.x",
]  # fmt: skip


def body_of(verb: str) -> bytes:
    found = [body for prefix, body in BODIES.items() if verb.startswith(prefix)]
    return json.dumps(found[-1] if found else {}).encode()


async def test_no_question_to_jetstream_changes_anything_whatever_its_reply_subject(
    guarded: Guarded, record_property: Any
) -> None:
    """A server checks no reply subject: in one account, an answer would be written on the log, or delete it."""
    names = {"log": LOG, "lease": LEASE, "snapshots": SNAPSHOTS}
    async with guarded.attacker("root") as root:
        await root.client.jetstream().publish(f"dorm.{CLUSTER}.AppSubmitted.root", b"first")
        before = await witness(root)
        tried = 0
        for name in ("alice", "rita", "webhooks", "olga", "api", "node-1", "node-3"):
            async with guarded.attacker(name) as one:
                for prefix in ("$JS.API", "DORMJS"):
                    for verb in VERBS:
                        for reply in REPLIES:
                            subject = f"{prefix}.{verb.format(**names)}"
                            await one.client.publish(subject, body_of(verb), reply=reply)
                            tried += 1
                await one.taken()
                assert {subject for subject in one.forbidden if ".delete." in subject} >= {
                    f"$js.api.stream.delete.{LOG}".lower(), f"dormjs.stream.delete.{LOG}".lower(),
                }  # fmt: skip
                await one.api("DORMJS.STREAM.INFO." + LEASE, {}) if name != "node-3" else None
            assert await witness(root) == before, name
        record_property("questions_tried", tried)
        # The control: in the log's account the same trick stores an answer on the log, so it is a real one.
        await root.client.publish(f"$JS.API.STREAM.INFO.{LOG}", b"", reply=f"dorm.{CLUSTER}.AppSubmitted.root")
        await root.taken()
        await asyncio.sleep(0.1)
        after = await witness(root)
        assert after[LOG][1]["messages"] == before[LOG][1]["messages"] + 1
        await root.api(f"$JS.API.CONSUMER.DELETE.{LOG}.theirs", {})


async def test_a_consumer_that_pushes_can_be_aimed_at_nothing_that_counts(guarded: Guarded) -> None:
    """A consumer's `deliver_subject` is in the log's account, also for a consumer that a reader creates."""
    aims = [
        ROUND, f"dorm.{CLUSTER}.NodeDrainRequested.root", LEASE_KEY, f"$JS.API.STREAM.DELETE.{LOG}",
        f"$JS.API.STREAM.PURGE.{SNAPSHOTS}", f"$JS.API.STREAM.PURGE.{LOG}", f"dorm.{CLUSTER}.report.node-1.NodeReported",
        f"dorm.{CLUSTER}.part.node-2.0",
    ]  # fmt: skip
    async with guarded.attacker("root") as root, guarded.connection("master") as master:
        heard: list[str] = []
        hearing = asyncio.create_task(_hear(master.bus.reports(f"dorm.{CLUSTER}.report.*.NodeReported"), heard))
        before = await witness(root)
        for name in ("rita", "node-1"):
            async with guarded.attacker(name) as one:
                for number, aim in enumerate(aims):
                    consumer = f"push{number}{name}"
                    config = {"name": consumer, "deliver_subject": aim, "ack_policy": "none", "deliver_policy": "all"}
                    question = {"stream_name": LOG, "config": {**config, "inactive_threshold": 10**9}}
                    await one.api(f"DORMJS.CONSUMER.CREATE.{LOG}.{consumer}", question)
        await asyncio.sleep(0.3)
        assert await witness(root) == before
        # The control: where a client of the account listens, such a consumer does deliver.
        listening = await root.client.subscribe(root.client.new_inbox())
        async with guarded.attacker("rita") as one:
            config = {
                "name": "push",
                "deliver_subject": listening.subject,
                "ack_policy": "none",
                "deliver_policy": "all",
            }
            await one.api(f"DORMJS.CONSUMER.CREATE.{LOG}.push", {"stream_name": LOG, "config": config})
            assert (await listening.next_msg(timeout=5)).subject
        hearing.cancel()
        assert heard == []
        for consumer in await consumers(root):
            await root.api(f"$JS.API.CONSUMER.DELETE.{LOG}.{consumer}", {})


async def _hear(reports: Any, heard: list[str]) -> None:
    async for record in reports:
        heard += [record.subject]


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1s"},
        {"Nats-Schedule": "@at 2000-01-01T00:00:00Z", "Nats-Schedule-Target": ROUND},
        {"Nats-Batch-Id": "x", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
        {"Nats-Incr": "1"},
    ],
    ids=lambda headers: next(iter(headers)),
)
async def test_no_header_makes_a_message_more_than_one_record(guarded: Guarded, headers: dict[str, str]) -> None:
    async with guarded.attacker("root") as root, guarded.attacker("alice") as alice:
        before = (await witness(root))[LOG][1]
        subject = f"dorm.{CLUSTER}.AppSubmitted.alice"
        await alice.client.publish(subject, b"trick", headers=headers)
        await alice.taken()
        after = (await witness(root))[LOG][1]
        assert after["first_seq"] == before["first_seq"]
        assert after["messages"] - before["messages"] in (0, 1)
        assert (after["subjects"] or {}).get(ROUND) == (before["subjects"] or {}).get(ROUND)
        # The control: the message without the header is stored.
        assert (await alice.client.jetstream(prefix="DORMJS").publish(subject, b"plain")).stream == LOG


async def test_nobody_hears_what_is_for_others(guarded: Guarded) -> None:
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


async def test_users_ask_how_masters_and_agents_are_and_nobody_else_answers(guarded: Guarded) -> None:
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


async def test_a_reader_who_takes_all_consumers_keeps_nobody_from_reading(guarded: Guarded) -> None:
    """A stream has room for so many consumers, whoever makes them.  Others then read without one, and people have none of the
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


async def test_a_refusal_comes_at_once_and_names_role_and_subject(guarded: Guarded) -> None:
    async with guarded.connection("alice") as alice:
        for subject in (ROUND, f"dorm.{CLUSTER}.AppSubmitted.bob", f"dorm.{CLUSTER}.NodeDrainRequested.alice"):
            with raises(LogRefused, "log.no_permission") as refused:
                # Well below any timeout of the link: nothing here waits for an answer that never comes.
                await asyncio.wait_for(alice.log.append(subject, b"x", timeout=60.0), 30.0)
            assert f"forbids user alice to publish on {subject}" in str(refused.value)
        # Of several at once each is told.
        ends = [alice.log.append(ROUND, b"x", timeout=60.0) for _ in range(20)]
        told = await asyncio.wait_for(asyncio.gather(*ends, return_exceptions=True), 30.0)
        assert all(isinstance(one, LogRefused) for one in told)
        with raises(LogRefused, "log.no_permission"):
            await alice.bus.publish_report(f"dorm.{CLUSTER}.report.node-1.NodeReported", b"x")
        with raises(LogRefused, "log.no_permission"):
            async for _ in alice.bus.reports(f"dorm.{CLUSTER}.report.*.NodeReported"):
                pass
        with raises(LogRefused, "log.message.too_large"):
            await alice.log.append(f"dorm.{CLUSTER}.AppSubmitted.alice", bytes(2_000_000))
        assert (await alice.log.append(f"dorm.{CLUSTER}.AppSubmitted.alice", b"x")).seq


async def test_a_removed_identity_is_out_at_once_and_nobody_else_notices(guarded: Guarded) -> None:
    async with (
        guarded.connection("olga") as olga,
        guarded.connection("alice") as alice,
        guarded.attacker("olga") as raw,
    ):
        following = olga.log.read(follow=True)
        assert await anext(following)
        guarded.write(without=["olga"])
        guarded.reload()
        async with asyncio.timeout(10):
            await raw.closed.wait()
        with raises(LogRefused, "log.no_permission") as refused:
            async for _ in following:
                pass
        assert "does not let operator olga in" in str(refused.value)
        with raises(LogRefused, "log.no_permission"):
            await olga.log.append(f"dorm.{CLUSTER}.AppSubmitted.olga", b"x")
        with pytest.raises(nats.errors.Error):
            await raw.client.flush()
        lost: list[bool] = []
        alice.tell_outages(lost.append)
        assert (await alice.log.append(f"dorm.{CLUSTER}.AppSubmitted.alice", b"y")).seq
        guarded.write()
        guarded.reload()
        async with asyncio.timeout(10):
            while True:
                try:
                    async with guarded.connection("olga") as again:
                        await again.log.end()
                        break
                except (LogRefused, LogUnavailable):  # The server's reload may also cut off who has just connected.
                    await asyncio.sleep(0.05)
        assert lost == []


async def test_every_kind_that_is_published_has_a_role() -> None:
    """A new kind that no role may publish would be refused everywhere."""
    of_identities = {kind.__name__ for kind in get_args(k.OfIdentities)}
    assert set(KINDS) == OPERATOR | NODE | of_identities | DELIVERIES | OWN["master"]
