"""The model of the log passes the conformance suite of logs, and loses, delays and repeats only what the real one may."""

from __future__ import annotations

import asyncio
import functools
import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from events.log.records import LogUnavailable, Overtaken
from tests.events.log.conformance import LogConformance
from tests.events.log.readable_conformance import ALICE, CLUSTER, ROUND
from tests.simulation.world.world import World
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from events.log.interface import EventLog
    from tests.simulation.world.process import Host, Process


async def _idle(process: Process) -> None:
    await asyncio.Event().wait()


def _in_virtual_time(method: Callable[..., Any]) -> Callable[..., None]:
    signature = inspect.signature(method)
    takes_log = "log" in signature.parameters

    @functools.wraps(method)
    def run(self: object, log: EventLog, **others: Any) -> None:
        world: World = log._world  # type: ignore[attr-defined]
        taken = {"log": log, **others} if takes_log else others
        world.loop.run_until_complete(method(self, **taken))

    if not takes_log:  # The world of the log has the loop that runs the test.
        log = inspect.Parameter("log", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = signature.replace(parameters=[*signature.parameters.values(), log])
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


class TestSimulatedLog(LogConformance):
    @pytest.fixture
    def log(self) -> Iterator[EventLog]:
        with World(1, cluster=CLUSTER, fold=False) as world:
            world.server.max_payload = 8 * 2**20
            yield world.connect(world.host("h").start("p", _idle)).log


for _name, _method in inspect.getmembers(LogConformance, inspect.iscoroutinefunction):
    if _name.startswith("test_"):
        setattr(TestSimulatedLog, _name, _in_virtual_time(_method))


class Writer:
    """Appends numbered facts, each repeatedly under the same id until it is known to be stored."""

    def __init__(self, host: Host, name: str, count: int) -> None:
        self.host, self.name, self.count = host, name, count
        self.known: dict[str, int] = {}

    async def main(self, process: Process) -> None:
        log = process.world.connect(process).log
        chance = process.world.chance("writer")
        for number in range(self.count):
            await asyncio.sleep(chance.expovariate(4.0))
            await self._append(log, f"{self.name}-{number}")

    async def _append(self, log: EventLog, msg_id: str) -> None:
        while True:
            try:
                stored = await log.append(ALICE, msg_id.encode(), msg_id=msg_id, timeout=2.0)
            except LogUnavailable:
                await asyncio.sleep(0.1)
            else:
                self.known[msg_id] = stored.seq
                return


class Leader:
    """Writes rounds, each after the last one that it knows; records which of them were its own."""

    def __init__(self, host: Host, name: str) -> None:
        self.host, self.name = host, name
        self.wrote: list[int] = []

    async def main(self, process: Process) -> None:
        log = process.world.connect(process).log
        number = 0
        while True:
            await asyncio.sleep(process.world.chance("leader").uniform(0.0, 1.0))
            number += 1
            try:
                last = await log.last_on(ROUND)
                await asyncio.sleep(0.01)
                stored = await log.append(
                    ROUND, self.name.encode(), msg_id=f"{self.name}.{number}", expected_last=last.seq if last else 0
                )
            except (LogUnavailable, Overtaken):
                continue
            self.wrote.append(stored.seq)


class Reader:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.seen: list[tuple[int, str]] = []

    async def main(self, process: Process) -> None:
        log = process.world.connect(process).log
        after = self.seen[-1][0] if self.seen else 0
        async with aclosing(log.read(after=after, follow=True)) as batches:
            async for batch in batches:
                self.seen += [(record.seq, record.msg_id) for record in batch]


def attack(world: World, hosts: list[Host], seconds: float) -> None:
    chance = world.chance("attack")
    hits: list[Callable[[Host], object]] = [
        lambda host: host.cut(silent=chance.random() < 0.5, way=chance.choice(["both", "up", "down"])),
        lambda host: host.cut(silent=True),
        lambda host: host.reset(),
        lambda host: host.lag(chance.uniform(0, 5)),
        lambda host: world.server.crash(chance.uniform(0.1, 4)),
        lambda host: world.server.pause(chance.uniform(0.1, 4)),
        _pause,
    ]
    for _ in range(chance.randint(3, 12)):
        begin, host = chance.uniform(0, seconds), chance.choice(hosts)
        world.at(begin, chance.choice(hits), host)
        world.at(begin + chance.choice([0.1, 2.0, 8.0, 30.0]), _mend, host)
    for host in hosts:
        world.at(seconds + 31, _mend, host)


def _pause(host: Host) -> None:
    for process in host.processes:
        process.pause()


def _mend(host: Host) -> None:
    host.heal()
    for process in list(host.processes):
        process.resume()


def play(seed: int, *, break_server: Callable[[World], None] = lambda _: None) -> str:
    """Run several writers, leaders and a reader under attack.  Raises AssertionError if the log violates its contract."""
    with World(seed, fold=False) as world:
        break_server(world)
        parts: list[Writer | Leader | Reader] = [
            *(Writer(world.host(f"w{n}"), f"w{n}", 20) for n in range(2)),
            *(Leader(world.host(f"l{n}"), f"l{n}") for n in range(2)),
            Reader(world.host("r")),
        ]
        processes = [part.host.start(part.host.name, part.main) for part in parts]
        attack(world, [part.host for part in parts], 20.0)
        writers = processes[:2]
        assert world.run_until(lambda: all(process.ended for process in writers), within=200.0)
        world.run_for(60.0)
        for process in processes[2:4]:
            process.kill()
        world.run_for(10.0)
        _check(world, parts)
        return world.digest()


def play_many(seeds: int, break_server: Callable[[World], None]) -> None:
    for seed in range(seeds):
        play(seed, break_server=break_server)


def _check(world: World, parts: list[Writer | Leader | Reader]) -> None:
    records = world.server.records
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    at = {record.seq: record for record in records}
    ids = [record.msg_id for record in records]
    assert len(ids) == len(set(ids)), "something was stored twice"
    for part in parts:
        if isinstance(part, Writer):
            assert len(part.known) == part.count
            assert all(seq in at and at[seq].msg_id == msg_id for msg_id, seq in part.known.items()), "a fact is lost"
            mine = [msg_id for msg_id in ids if msg_id.startswith(part.name)]
            assert mine == list(part.known), "they were stored in another order"
        elif isinstance(part, Leader):
            assert all(seq in at and at[seq].body == part.name.encode() for seq in part.wrote), "a round is lost"
        else:
            assert part.seen == [(record.seq, record.msg_id) for record in records], "the reader saw something else"


def test_nothing_acknowledged_is_lost_or_stored_twice_whatever_happens() -> None:
    for seed in range(tries(10, 2000)):
        play(seed)


@pytest.mark.parametrize(
    ("what", "said"),
    [("dedupe", "twice"), ("lose_acknowledged", "lost|something else|the log ends|order")],
    ids=["no de-duplication", "a lost tail"],
)
def test_a_server_that_does_not_keep_its_word_is_found(what: str, said: str) -> None:
    def break_server(world: World) -> None:
        setattr(world.server, what, 3 if what == "lose_acknowledged" else False)

    with pytest.raises(AssertionError, match=said):
        play_many(100, break_server)


def test_a_seed_is_one_history() -> None:
    assert [play(seed) for seed in range(3)] == [play(seed) for seed in range(3)]
    assert play(1) != play(2)
