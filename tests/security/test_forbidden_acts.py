"""Every forbidden act by every role, against a real server: each is refused at the culprit, and changes nothing.

The table of what is allowed is written by hand, and not derived from `dorm.security.roles`, which it judges.  Each attack has
a control: the same act by one who may, or where it can work, does work.
"""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import nats.errors
import pytest

from events import kinds as k
from events.kinds.messages import Published
from events.log.records import LogRefused, LogUnavailable
from tests.errors import raises
from tests.security.hostile import (
    CLUSTER,
    EVERYONE,
    LEASE,
    LEASE_KEY,
    LOG,
    REPLIES,
    ROUND,
    SNAPSHOTS,
    VERBS,
    Guarded,
    body_of,
    consumers,
    witness,
)

pytestmark = [pytest.mark.nats, pytest.mark.asyncio(loop_scope="module")]

KINDS = sorted({kind.__name__ for kind in get_args(Published)} - {"NodeReported", "Round"})
USER = {
    "AppSubmitted", "AppUpdated", "AppCancelRequested", "AppRetryRequested", "AppHoldRequested", "AppReleaseRequested",
    "AppNoted", "AppEditRequested", "AppRestartRequested",
    "TokenAdded", "TokenRemoved",
}  # fmt: skip
OPERATOR = USER | {
    "NodeDrainRequested", "NodeForgetRequested", "NodeTrustRequested", "SchedulingPaused", "SchedulingResumed",
    "PolicyChanged", "SealRequested", "RotationRequested", "WebhookSet", "WebhookRemoved", "WebhookTestRequested",
}  # fmt: skip
NODE = {
    "NodeJoined", "NodeLeft", "NodeDrainRequested", "ContainersPrepared", "ContainerDelayed", "ContainerStarted",
    "ContainerExited", "AppCheckpointed", "AppProgressed", "ProgressLinesSkipped", "AppResizeRequested", "MembershipChanged",
    "EpochCompleted", "SessionStarted", "SessionEnded",
}  # fmt: skip
OWN = {
    "reader": {"TokenAdded", "TokenRemoved"}, "user": USER, "operator": OPERATOR, "api": OPERATOR, "node": NODE,
    "admin": {*KINDS, "round"}, "master": {"LogRotated", "RotationFailed"}, "joining": set(),
}  # fmt: skip
"""What each role may publish in its own name.  (`round` of an admin is not a round: those are on `round.master` alone.)"""
DELIVERIES = {"AppWaitsLong", "WebhookTested", "WebhookDisabled"}
"""What the reader that deliverers of webhooks run as publishes as well."""


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


async def test_everyone_publishes_exactly_what_the_table_allows(guarded: Guarded, record_property: Any) -> None:
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


async def test_a_removed_identity_is_disconnected_at_once_without_effect_on_others(guarded: Guarded) -> None:
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
        alice.report_outages(lost.append)
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
