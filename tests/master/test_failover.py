"""Several masters of one cluster: one leads and the others follow, whichever is stopped, killed, cut off or
frozen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import dorm.master.failure_detector
import dorm.master.master
from dorm.client.client import Client
from dorm.master.master import Master
from events import subjects
from events.codec import decode, encode
from events.kinds import (
    AppAccepted,
    AppSubmitted,
    MasterElected,
    NodeLeaseEnded,
    NodeLost,
    NodeRecovered,
    PolicyChanged,
    Round,
)
from events.log.leadership import Held, MemoryLeadership
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import LogDamaged, LogUnavailable
from events.nats.connection import Connection
from replay.audit.audit import verify
from tests.core.records import document, joined
from tests.e2e.commands import Started, done, running, until_printed
from tests.errors import codes_in
from tests.lab.machines.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from events.kinds import Event
    from events.log.interface import Bus, EventLog
    from events.log.leadership import Leadership
    from events.log.records import Record

CLUSTER = "local"
PATIENCE_S = 30.0
LEASE_S = 0.4


class Cluster:
    """A log, a bus and a lease; masters of it come and go."""

    def __init__(
        self, log: EventLog | None = None, bus: Bus | None = None, leadership: Leadership | None = None
    ) -> None:
        self.log = log or MemoryLog(time.time_ns)
        self.bus = bus or MemoryBus(time.time_ns)
        self.leadership = leadership or MemoryLeadership()

    @contextlib.asynccontextmanager
    async def master(self, name: str, **more: Any) -> AsyncIterator[Master]:
        """Until the end of the block, which ends it gracefully."""
        options: dict[str, Any] = {"clock": time.time_ns, "leadership": self.leadership, "lease_s": LEASE_S} | more
        master = Master(self.log, self.bus, CLUSTER, name=name, **options)
        task = asyncio.create_task(master.run())
        try:
            settled = asyncio.create_task(master.settled.wait())
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait({task, settled}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                settled.cancel()
                await task
            yield master
        finally:
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled(), task.exception()

    async def say(self, event: Event, who: str) -> None:
        await self.log.append(subjects.fact(CLUSTER, type(event).__name__, who), encode(event))

    async def rounds(self) -> list[Round]:
        records = [record async for batch in self.log.read() for record in batch]
        return [event for event in map(decode, records) if isinstance(event, Round)]

    async def said(self, *kinds: type[Event]) -> list[Event]:
        return [fact for event in await self.rounds() for fact in event.events if isinstance(fact, kinds)]

    async def first(self, kind: type[Event], after: int = 0) -> tuple[Record, Round]:
        """The first round after a sequence with such a fact."""
        async with asyncio.timeout(PATIENCE_S):
            async for batch in self.log.read(after=after, follow=True):
                for record in batch:
                    event = decode(record)
                    if isinstance(event, Round) and any(isinstance(fact, kind) for fact in event.events):
                        return record, event
        raise AssertionError("a log that is followed does not end")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # a master tells nobody how far it is
            await asyncio.sleep(0.005)


async def test_one_leads_and_the_other_follows_silently_until_it_gets_the_lease() -> None:
    cluster = Cluster()
    async with contextlib.AsyncExitStack() as later:
        # Both share a loop, so a busy machine must not let the lease expire: it is given back.
        async with cluster.master("first", lease_s=8.0) as first:
            second = await later.enter_async_context(cluster.master("second", lease_s=8.0))
            await cluster.say(joined("a"), "a")
            for number in range(20):
                await cluster.say(AppSubmitted(id=f"ann.{number}", spec=document(f"app-{number}")), "ann")
            await until(lambda: len(second.state.apps) == 20)
            assert (first.elected.is_set(), second.elected.is_set()) == (True, False)
            assert {event.by for event in await cluster.rounds()} == {"first"}
            end = await cluster.log.end()
        _, elected = await cluster.first(MasterElected, after=end)
        assert (elected.by, elected.epoch) == ("second", 2)
        await until(second.elected.is_set)
        assert second.state.counters.void_rounds == 0
        assert len(await cluster.said(AppAccepted)) == 20
    held = await cluster.leadership.look()
    assert held is not None
    assert held.holder == "", "it is given back, too"


class Away(MemoryLeadership):
    """A lease that can be out of reach, for one holder or for all."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    async def look(self) -> Held | None:
        if self.away:
            raise LogUnavailable("nobody answers")
        return await super().look()

    async def renew(self, held: Held) -> Held | None:
        if self.away:
            raise LogUnavailable("nobody answers")
        return await super().renew(held)


async def test_a_master_whose_lease_lapsed_decides_nothing_and_needs_no_election_to_go_on() -> None:
    leadership = Away()
    cluster = Cluster(leadership=leadership)
    async with cluster.master("only") as master:
        await until(lambda: master.leads)
        leadership.away = True
        await until(lambda: not master.leads)
        end = await cluster.log.end()
        await cluster.say(AppSubmitted(spec=document("app")), "ann")
        await until(lambda: master.state.seq == end + 1)
        assert not await cluster.said(AppAccepted), "another master may lead"
        leadership.away = False
        await cluster.first(AppAccepted)
        assert len(await cluster.said(MasterElected)) == 1
        assert {event.epoch for event in await cluster.rounds()} == {1}


async def test_a_master_whose_lease_lapsed_follows_the_one_that_took_it() -> None:
    leadership = Away()
    cluster = Cluster(leadership=leadership)
    async with cluster.master("first") as first:
        await until(lambda: first.leads)
        leadership.away = True
        await until(lambda: not first.leads)
        held = await MemoryLeadership.look(leadership)
        assert await leadership.take("second", 3600.0, held)
        leadership.away = False
        await until(lambda: not first.elected.is_set())
        assert len(await cluster.said(MasterElected)) == 1


async def test_after_a_lapse_a_master_checks_the_log_before_it_decides() -> None:
    """Its server may have been away, and have lost records."""
    leadership = Away()
    cluster = Cluster(leadership=leadership)
    master = Master(
        cluster.log, cluster.bus, CLUSTER, name="only", clock=time.time_ns, leadership=leadership, lease_s=LEASE_S
    )
    task = asyncio.create_task(master.run())
    await until(lambda: master.leads)
    leadership.away = True
    await until(lambda: not master.leads)

    async def lost() -> None:
        raise LogDamaged("the server has lost records")

    cluster.log.check = lost  # type: ignore[method-assign]
    await cluster.say(AppSubmitted(spec=document("app")), "ann")
    leadership.away = False
    await asyncio.wait([task], timeout=PATIENCE_S)
    error = task.exception()
    assert error is not None
    assert codes_in(error) == ["log.damaged"]
    assert not await cluster.said(AppAccepted)


async def test_a_leader_overtaken_despite_its_lease_follows_or_leads_again() -> None:
    """A master that knows of no lease is elected at any time; it ends, for the other one has it."""
    cluster = Cluster()
    async with cluster.master("first") as first:
        await until(first.elected.is_set)
        with pytest.raises(ExceptionGroup) as ended:
            await asyncio.wait_for(
                Master(cluster.log, cluster.bus, CLUSTER, name="lone", clock=time.time_ns).run(), PATIENCE_S
            )
        assert codes_in(ended.value) == ["master.deposed"]
        await until(lambda: first.elected.is_set() and first.state.epoch == 3)
    assert [event.by for event in await cluster.rounds()] == ["first", "lone", "first"]
    assert first.state.counters.void_rounds == 0


async def test_steps_of_a_masters_clock_lose_no_node_and_hold_nothing_up() -> None:
    cluster, skew = Cluster(), [0]
    await cluster.say(PolicyChanged(heartbeat_s=0.3, node_grace_s=2, node_lease_s=3, idle_s=1), "operator")
    await cluster.say(joined("a"), "a")
    beating = asyncio.create_task(beat(cluster.bus, "a"))
    try:
        async with cluster.master("first", clock=lambda: time.time_ns() + skew[0]) as master:
            await until(master.elected.is_set)
            for hours in (5, -5, 0):
                skew[0] = hours * 3600 * 10**9
                end = await cluster.log.end()
                await cluster.say(AppSubmitted(id=f"ann.{hours}", spec=document(f"app-{hours + 5}")), "ann")
                record, accepted = await cluster.first(AppAccepted, after=end)
                assert abs(accepted.at - record.time) < 60 * 10**9
                await asyncio.sleep(1.2)  # The next look at who is silent.
        assert not await cluster.said(NodeLost, NodeLeaseEnded)
    finally:
        beating.cancel()
        await asyncio.wait([beating])


async def beat(bus: Bus, node: str) -> None:
    number = 0
    while True:
        number += 1
        with contextlib.suppress(LogUnavailable):
            await bus.publish_report(subjects.report(CLUSTER, node), b"%d" % number, timeout=1.0)
        await asyncio.sleep(0.2)


@pytest.mark.nats
async def test_an_outage_of_the_log_loses_no_node_but_silence_afterwards_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dorm.master.failure_detector, "CUT_OFF_NS", 600_000_000)
    monkeypatch.setattr(dorm.master.master, "_PULSE_S", 0.1)
    monkeypatch.setattr(dorm.master.master, "_TICK_S", 0.1)
    server = NatsServer(tmp_path / "nats")
    await server.start()
    connection = await Connection.open(server.url, CLUSTER, create=True)
    nodes = await Connection.open(server.url, CLUSTER)
    cluster = Cluster(connection.log, connection.bus, connection.leadership)
    beating = asyncio.create_task(beat(nodes.bus, "a"))
    try:
        await cluster.say(PolicyChanged(heartbeat_s=0.3, node_grace_s=1.5), "operator")
        await cluster.say(joined("a"), "a")
        async with cluster.master("first", lease_s=60.0) as master:
            await until(master.elected.is_set)
            await asyncio.sleep(0.5)
            await server.kill()
            await asyncio.sleep(3.0)
            await server.start()
            await nodes.connected()
            await cluster.say(AppSubmitted(spec=document("app")), "ann")
            await cluster.first(AppAccepted)
            await asyncio.sleep(2.0)  # As long as the grace lasts, and one look.
            assert not await cluster.said(NodeLost)
            assert master.state.epoch == 1
            beating.cancel()
            await cluster.first(NodeLost)
            beating = asyncio.create_task(beat(nodes.bus, "a"))
            await cluster.first(NodeRecovered)
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        await nodes.close()
        await connection.close()
        await server.stop()


# --- as separate processes --------------------------------------------------------------------------------------------


class Masters:
    """`dorm master` three times against a real server, with continuous submissions."""

    def __init__(self, folder: Path, url: str, cluster: str) -> None:
        self.folder = folder
        self.words = ["master", "--url", url, "--cluster", cluster, "-v"]
        self.processes: dict[str, Started] = {}
        self.logs: dict[str, Path] = {}

    async def start(self, stack: contextlib.AsyncExitStack, name: str) -> None:
        self.logs[name] = self.folder / f"{name}.log"
        words = [*self.words, "--name", name]
        self.processes[name] = await stack.enter_async_context(running(self.folder / "home", self.logs[name], *words))

    def ready(self) -> bool:
        """Whether each knows who leads."""
        texts = [log.read_text() for log in self.logs.values()]
        return all("leading" in text or "following" in text for text in texts)

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.processes[name].pid, number)


async def flood(client: Client, answered: list[str]) -> None:
    """Submissions one after another; each is answered."""
    number = 0
    while True:
        number += 1
        app = await client.submit(document(f"app-{number}"), id=f"ann.{number}", answer_timeout=PATIENCE_S)
        answered.append(app.id)
        await asyncio.sleep(0.2)


@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.soak
async def test_masters_that_are_killed_and_frozen_are_followed_by_others(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    name = f"lead-{tmp_path.name[-30:]}"
    connection = await Connection.open(nats_server.url, name, create=True)
    client = Client(connection.log, connection.bus, name, user="ann", connection=connection)
    masters = Masters(tmp_path, nats_server.url, name)
    answered: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(client)
        for one in ("m1", "m2", "m3"):
            await masters.start(stack, one)
        await until(masters.ready)
        flooding = asyncio.create_task(flood(client, answered))
        stack.callback(flooding.cancel)

        first = await leads(client)
        masters.signal(first, signal.SIGKILL)
        second = await leads(client, instead_of=first)

        masters.signal(second, signal.SIGSTOP)
        third = await leads(client, instead_of=second)
        assert third != first
        asked = ("masters", "-o", "json", "--url", nats_server.url, "--cluster", name)
        async with asyncio.timeout(PATIENCE_S):  # On a busy machine one of its renewals may be late.
            while (shown := json.loads(await done(tmp_path / "home", *asked)))["condition"] != "leading":
                pass
        assert shown["leader"].rsplit("-", 1)[0] == third
        seen = len(answered)
        await until(lambda: len(answered) > seen + 5)
        masters.signal(second, signal.SIGCONT)
        await until_printed(masters.logs[second], "leading no longer", masters.processes[second])
        masters.signal(third, signal.SIGTERM)
        assert await asyncio.wait_for(masters.processes[third].wait(), PATIENCE_S) == 0
        assert await leads(client, instead_of=third) == second
        seen = len(answered)
        await until(lambda: len(answered) > seen + 5)
        assert not flooding.done()
        flooding.cancel()
        await asyncio.wait([flooding])
        await check_one_line_of_decisions(client, answered)
    for log in masters.logs.values():
        assert "Traceback" not in log.read_text()


async def leads(client: Client, *, instead_of: str = "") -> str:
    """Return which of the masters leads, once one other than `instead_of` does."""
    async with asyncio.timeout(PATIENCE_S):
        async for state, _ in client.watch():
            leader = state.leader.rsplit("-", 1)[0]
            if leader and leader != instead_of:
                return leader
    raise AssertionError("a log that is followed does not end")


async def check_one_line_of_decisions(client: Client, answered: list[str]) -> None:
    """Each round knows the one before it, none was void, each epoch has one master, and each submission has one answer."""
    accepted, last, leaders = list[str](), 0, list[str]()
    async for record in client.records():
        event = decode(record)
        if isinstance(event, Round):
            assert last <= event.basis < record.seq
            last = record.seq
            leaders += [event.by] if any(isinstance(fact, MasterElected) for fact in event.events) else []
            assert (event.epoch, event.by) == (len(leaders), leaders[-1])
            accepted += [fact.app for fact in event.events if isinstance(fact, AppAccepted)]
    assert (await client.state()).counters.void_rounds == 0
    assert len(accepted) == len(set(accepted))
    assert set(answered) <= set(accepted)
    report = await verify(client.log)
    assert report.good
