"""A master and clients on a cluster that knows its users and its masters' keys."""

from __future__ import annotations

import time

import pytest

from dorm.client.client import Client
from dorm.client.errors import NotFound, Refused
from dorm.client.operator_requests import change
from dorm.master.master import RoundsRefused
from events import kinds as k
from events import subjects
from events.chain import SealKey, is_round_signed_by, new_seed
from events.codec import decode, encode
from events.log.memory import MemoryBus, MemoryLog
from events.subjects import kind_of
from tests.core.records import document, joined
from tests.errors import raises
from tests.master.test_master_seals import CLUSTER, leading


async def cluster(*masters: SealKey) -> MemoryLog:
    log = MemoryLog(time.time_ns)

    async def by(who: str, event: k.Event) -> None:
        await log.append(subjects.fact(CLUSTER, type(event).__name__, who), encode(event))

    await by("root", k.TrustEnabled(masters=[key.public for key in masters], nodes=["n1"]))
    for name, role in (("ann", "user"), ("mallory", "user"), ("op", "operator")):
        await by("root", k.UserAdded(name=name, role=role))  # type: ignore[arg-type]
    await by("op", k.PolicyChanged(quiet_ms=10, quiet_limit_ms=20))
    await by("n1", joined("n1"))
    return log


def client(log: MemoryLog, user: str) -> Client:
    return Client(log, MemoryBus(time.time_ns), CLUSTER, user=user)


async def test_every_round_is_signed_and_clients_act_within_their_rights() -> None:
    key, other = SealKey(new_seed()), SealKey(new_seed())
    log = await cluster(other, key)
    async with leading(log, "m1", key):
        ann, mallory, op = client(log, "ann"), client(log, "mallory"), client(log, "op")
        mine = await ann.submit(document("train"), id="nightly")
        assert (mine.tenant, mine.submission) == ("ann", "ann//nightly")
        assert (await ann.submit(document("train"), id="nightly")).id == mine.id, "a repeat is the same app"
        theirs = await mallory.submit(document("train"), id="ann//nightly")
        assert theirs.id != mine.id
        assert (await ann.app("train")).id == mine.id
        assert (await mallory.app("train")).id == theirs.id
        end = await log.end()
        with raises(Refused, "app.not_owner"):
            await mallory.cancel(mine.id)
        with raises(Refused, "app.not_owner"):
            await mallory.update(mine.id, weight=9.0)
        with raises(Refused, "identity.not_operator"):
            await mallory.drain("n1")
        with raises(Refused, "identity.not_operator"):
            await mallory.change_policy(k.PolicyChanged(idle_s=60.0))
        with raises(Refused, "identity.unknown"):
            await client(log, "nobody").submit(document("more"))
        with raises(Refused, "submission.user.not_own"):
            await mallory.submit({**document("more"), "user": "ann"})
        with raises(Refused, "identity.not_admin"):
            await change(mallory, k.UserAdded(name="mallory", role="admin"))
        with raises(Refused, "submission.id.too_long"):
            await ann.submit(document("more"), id="x" * 510)
        with raises(NotFound, "app.not_found"):
            await ann.app("nothing")
        assert await log.end() == end, "what is refused is not even sent"
        assert (await op.update(mine.id, weight=2.0)).weight == 2.0
        await ann.cancel("train")
        ended = await ann.wait(mine.id)
        assert ended.ended == "cancelled"
        assert not (await mallory.app(theirs.id)).ended
    previous = 0
    for record in log.records:
        if kind_of(record.subject) == "Round":
            assert is_round_signed_by(record.body, previous, [key.public]), record.seq
            previous = record.seq
    assert previous


@pytest.mark.parametrize("key", [None, SealKey(new_seed())])
async def test_a_master_without_a_known_key_does_not_lead(key: SealKey | None) -> None:
    log = await cluster(SealKey(new_seed()))
    with pytest.raises(ExceptionGroup) as caught:
        async with leading(log, "m1", key):
            pass
    refused = caught.value.subgroup(RoundsRefused)
    assert refused is not None
    assert not any(isinstance(decode(record), k.Round) for record in log.records)
