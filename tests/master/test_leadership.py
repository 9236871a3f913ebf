"""The contract of the masters' lease in every store, and how a master waits for it, keeps and loses it."""
# ruff: noqa: ASYNC110 - a lease tells nobody that it has changed

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from dorm.master.lease import Lease, LeaseLost
from events.log.leadership import Held, Leadership, MemoryLeadership
from events.log.records import LogRefused, LogUnavailable
from events.nats.connection import Connection
from tests.errors import raises
from tests.lab.machines.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.aio.msg import Msg

PATIENCE_S = 20.0


async def taken(leadership: Leadership, holder: str, over: Held | None = None, ttl_s: float = 2.0) -> Held:
    held = await leadership.take(holder, ttl_s, over)
    assert held is not None
    assert (held.holder, held.ttl_s) == (holder, ttl_s)
    assert await leadership.look() == held
    return held


class LeadershipConformance:
    """`leadership` returns a free one."""

    async def test_a_free_lease_has_no_holder(self, leadership: Leadership) -> None:
        assert await leadership.look() is None
        await taken(leadership, "a")

    async def test_one_of_two_masters_that_saw_the_same_revision_gets_the_lease(self, leadership: Leadership) -> None:
        first = await asyncio.gather(*(leadership.take(name, 2.0, None) for name in "abcdef"))
        (held,) = [one for one in first if one is not None]
        assert await leadership.look() == held
        second = await asyncio.gather(*(leadership.take(name, 3.0, held) for name in "ghijkl"))
        (other,) = [one for one in second if one is not None]
        assert await leadership.look() == other
        assert other.revision != held.revision
        assert await leadership.take("m", 2.0, held) is None
        assert await leadership.take("m", 2.0, None) is None

    async def test_a_renewal_gives_another_revision(self, leadership: Leadership) -> None:
        held = await taken(leadership, "a")
        renewed = await leadership.renew(held)
        assert renewed is not None
        assert (renewed.holder, renewed.ttl_s) == ("a", 2.0)
        assert renewed.revision != held.revision
        assert await leadership.look() == renewed
        assert await leadership.take("b", 2.0, held) is None

    async def test_a_lost_lease_can_neither_be_renewed_nor_given_back(self, leadership: Leadership) -> None:
        held = await taken(leadership, "a")
        other = await taken(leadership, "b", over=held)
        assert await leadership.renew(held) is None
        await leadership.give_back(held)
        assert await leadership.look() == other

    async def test_a_renewal_whose_answer_was_lost_does_not_lose_the_lease(self, leadership: Leadership) -> None:
        held = await taken(leadership, "a")
        assert await leadership.renew(held) is not None
        again = await leadership.renew(held)
        assert again is not None
        assert await leadership.look() == again

    async def test_a_lease_that_is_given_back_is_free(self, leadership: Leadership) -> None:
        await leadership.give_back(await taken(leadership, "a"))
        found = await leadership.look()
        assert found is not None
        assert found.holder == ""
        await taken(leadership, "b", over=found)


class TestMemoryLeadership(LeadershipConformance):
    @pytest.fixture
    def leadership(self) -> Leadership:
        return MemoryLeadership()


@pytest.mark.nats
class TestJetStreamLeadership(LeadershipConformance):
    @pytest.fixture
    async def leadership(self, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Leadership]:
        connection = await Connection.open(nats_server.url, f"lead-{tmp_path.name[-30:]}", create=True)
        yield connection.leadership
        await connection.close()


@pytest.mark.nats
async def test_the_lease_can_be_taken_despite_any_content_of_its_key(nats_server: NatsServer) -> None:
    connection = await Connection.open(nats_server.url, "scribbled", create=True)
    leadership = connection.leadership
    for text in (b"", b"\xff\x00", b"{}", b'{"holder": 7, "ttl_s": 1}', b'{"holder": "x", "ttl_s": -1e300}'):
        await connection._link.client.jetstream().publish(leadership._key, text)
        async with asyncio.timeout(PATIENCE_S):
            found = await leadership.look()
            assert found is not None
            assert 0.0 <= found.ttl_s <= 3600.0
            await taken(leadership, "a", over=found)
    assert await leadership.replicas() == 1
    await connection.close()


@pytest.mark.nats
async def test_any_key_value_client_can_read_the_lease_and_delete_it(nats_server: NatsServer) -> None:
    connection = await Connection.open(nats_server.url, "kv", create=True)
    bucket = await connection._link.client.jetstream().key_value("DORM_leadership-kv")
    held = await taken(connection.leadership, "a", ttl_s=2.0)
    entry = await bucket.get("master")
    assert (json.loads(entry.value or b"")["holder"], entry.revision) == ("a", held.revision)
    await bucket.delete("master")
    deleted = await connection.leadership.look()
    assert deleted is not None
    assert deleted.ttl_s == 0.0, "it is free at once"
    assert await connection.leadership.renew(held) is None
    await taken(connection.leadership, "b", over=deleted)
    await connection.close()


@pytest.mark.nats
async def test_a_look_asks_the_leading_server(nats_server: NatsServer) -> None:
    """A direct get would be answered by any of them, however far it lags."""
    connection = await Connection.open(nats_server.url, "asks", create=True)
    client = connection._link.client
    asked: list[str] = []

    async def note(message: Msg) -> None:
        asked.append(message.subject)

    await client.subscribe("$JS.API.*.*.GET.>", cb=note)
    await client.subscribe("$JS.API.DIRECT.GET.>", cb=note)
    await taken(connection.leadership, "a")
    await connection.leadership.written_at()
    await (await client.jetstream().key_value("DORM_leadership-asks")).get("master")
    await client.flush()
    direct = "$JS.API.DIRECT.GET.KV_DORM_leadership-asks.$KV.DORM_leadership-asks.master"
    assert asked == ["$JS.API.STREAM.MSG.GET.KV_DORM_leadership-asks"] * 2 + [direct], "the last is nats-py's own"
    await connection.close()


@pytest.mark.nats
async def test_no_other_stream_can_grant_the_lease(nats_server: NatsServer) -> None:
    connection = await Connection.open(nats_server.url, "moved", create=True)
    manager = connection._link.client.jetstream()
    await manager.delete_stream("KV_DORM_leadership-moved")
    await manager.add_stream(name="OTHER", subjects=["$KV.DORM_leadership-moved.>"])
    try:
        with pytest.raises(LogRefused, match="expected stream does not match"):
            await connection.leadership.take("a", 2.0, None)
        assert (await manager.stream_info("OTHER")).state.messages == 0
    finally:
        await manager.delete_stream("OTHER")
        await connection.close()


@pytest.mark.nats
async def test_a_lease_outlives_the_server(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    try:
        connection = await Connection.open(server.url, "local", create=True)
        held = await taken(connection.leadership, "a")
        await server.restart()
        await connection.connected()
        renewed = None
        async with asyncio.timeout(PATIENCE_S):
            while renewed is None:
                with contextlib.suppress(LogUnavailable):
                    renewed = await connection.leadership.renew(held)
                    assert renewed is not None, "it is still its"
                await asyncio.sleep(0.05)  # Without a connection it fails at once, and the loop has to make one.
        await connection.close()
    finally:
        await server.stop()


# --- waiting for it, and keeping it -------------------------------------------------------------------------------------


class Unsteady(MemoryLeadership):
    """Does not answer while `away`, and loses its answers while `mute`."""

    away = False
    mute = False
    looks = 0

    async def look(self) -> Held | None:
        self.looks += 1
        self._answer(self.away)
        return await super().look()

    async def take(self, holder: str, ttl_s: float, over: Held | None) -> Held | None:
        self._answer(self.away)
        taken = await super().take(holder, ttl_s, over)
        self._answer(self.mute)
        return taken

    async def renew(self, held: Held) -> Held | None:
        self._answer(self.away)
        renewed = await super().renew(held)
        self._answer(self.mute)
        return renewed

    def _answer(self, never: bool) -> None:
        if never:
            raise LogUnavailable("nobody answers")


async def won(lease: Lease) -> float:
    """When, by the loop's clock."""
    async with asyncio.timeout(PATIENCE_S):
        await lease.win()
    assert lease.held
    return asyncio.get_running_loop().time()


async def test_a_silent_lease_is_taken_only_after_its_duration() -> None:
    leadership = MemoryLeadership()
    await leadership.take("gone", 0.3, None)
    began = asyncio.get_running_loop().time()
    assert await won(Lease(leadership, "next", 2.0)) - began >= 0.3
    assert await leadership.look() == Held("next", 2.0, 2)


async def test_a_free_or_returned_lease_is_taken_immediately() -> None:
    leadership = MemoryLeadership()
    first = Lease(leadership, "first", 3600.0)
    await won(first)
    await first.give_back()
    assert not first.held
    await won(Lease(leadership, "second", 3600.0))


async def test_a_renewed_lease_is_not_taken() -> None:
    leadership = MemoryLeadership()
    first, second = Lease(leadership, "first", 0.2), Lease(leadership, "second", 0.2)
    await won(first)
    waiting = asyncio.create_task(second.win())
    keeping = asyncio.create_task(first.keep())
    async with asyncio.timeout(PATIENCE_S):
        await second.settled.wait()
        revision = (await leadership.look() or Held("", 0.0, 0)).revision
        while (found := await leadership.look()) is None or found.revision < revision + 8:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        assert first.held
        keeping.cancel()
        await waiting
    assert second.held
    await asyncio.wait([keeping])


async def test_an_unreadable_lease_blocks_no_one() -> None:
    """Silence counts only as long as it could have been broken."""
    leadership = Unsteady()
    await leadership.take("there", 0.3, None)
    waiting = asyncio.create_task(Lease(leadership, "next", 0.2).win())
    while leadership.looks < 3:
        await asyncio.sleep(0.005)
    leadership.away = True
    await asyncio.sleep(0.4)
    leadership.away, back = False, asyncio.get_running_loop().time()
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    assert asyncio.get_running_loop().time() - back >= 0.3


async def test_a_lease_taken_without_an_answer_belongs_to_the_taker() -> None:
    leadership = Unsteady()
    leadership.mute = True
    waiting = asyncio.create_task(Lease(leadership, "a", 0.8).win())
    while await MemoryLeadership.look(leadership) is None:
        await asyncio.sleep(0.005)
    leadership.mute, looks = False, leadership.looks
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    assert leadership.looks == looks + 1


@pytest.mark.parametrize("trouble", ["away", "mute"])
async def test_without_answers_to_its_renewals_a_lease_lapses_until_it_is_renewed(trouble: str) -> None:
    leadership = Unsteady()
    lease = Lease(leadership, "a", 0.2)
    await won(lease)
    setattr(leadership, trouble, True)
    keeping = asyncio.create_task(lease.keep())
    async with asyncio.timeout(PATIENCE_S):
        while lease.held:
            await asyncio.sleep(0.005)
        assert not keeping.done()
        setattr(leadership, trouble, False)
        while not lease.held:
            await asyncio.sleep(0.005)
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_a_lapsed_lease_that_another_master_took_and_gave_back_is_lost() -> None:
    """That master may have led meanwhile."""
    leadership = Unsteady()
    lease = Lease(leadership, "a", 0.2)
    await won(lease)
    leadership.away = True
    keeping = asyncio.create_task(lease.keep())
    async with asyncio.timeout(PATIENCE_S):
        while lease.held:
            await asyncio.sleep(0.005)
        other = await MemoryLeadership.take(leadership, "b", 2.0, await MemoryLeadership.look(leadership))
        assert other is not None
        await leadership.give_back(other)
        leadership.away = False
        with raises(LeaseLost, "lease.taken"):
            await keeping
    assert not lease.held


async def test_after_a_blocked_loop_the_lease_ends_before_any_decision() -> None:
    lease = Lease(MemoryLeadership(), "a", 0.1)
    await won(lease)
    deadline = lease._good_until + 0.01
    while asyncio.get_running_loop().time() < deadline:
        pass
    assert not lease.held


async def test_a_leader_that_learns_of_a_successor_stops_leading() -> None:
    leadership = MemoryLeadership()
    lease = Lease(leadership, "a", 0.2)
    await won(lease)
    await taken(leadership, "b", over=await leadership.look())
    async with asyncio.timeout(PATIENCE_S):
        with raises(LeaseLost, "lease.taken"):
            await lease.keep()
    assert not lease.held
    await lease.give_back()
    assert (await leadership.look() or Held("", 0.0, 0)).holder == "b"
