"""The tail of a log in memory: where it starts, where it resumes, and what passes its filters."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.client.client import Client
from dorm.client.tail import Filter, Tail, before_last
from dorm.core.evolve import evolve
from dorm.core.snapshot import dump
from dorm.core.state import State
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import LogDamaged, LogUnavailable
from events.positions import Position
from tests.core.query.test_concerns import LOGS, cases, log, naive
from tests.errors import raises
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.log.records import Record
    from events.positions import Logged


class FewInABatch(MemoryLog):
    """Starts after `begin` records, of which only a snapshot is left, and returns three records at a time."""

    def __init__(self, records: Sequence[Record], begin: int = 0) -> None:
        super().__init__(lambda: 0, records)
        self.begin = begin
        self.read_from: list[int] = []

    async def start(self) -> int:
        return self.begin

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        if after < self.begin:
            raise LogDamaged(f"the log begins after {self.begin}")
        self.read_from.append(after)
        async with aclosing(super().read(after=after, subjects=subjects, follow=follow)) as batches:
            async for batch in batches:
                for first in range(0, len(batch), 3):
                    yield batch[first : first + 3]


async def beginning_late(records: Sequence[Record], begin: int) -> FewInABatch:
    found = FewInABatch(records, begin)
    state = State()
    for record in records[:begin]:
        evolve(state, record)
    info, body = dump(state, build="another")
    await found.snapshots.put(info, body)
    return found


def client(records: Sequence[Record]) -> Client:
    return Client(FewInABatch(records), MemoryBus(lambda: 0), cluster_of(records), user="me")


def cluster_of(records: Sequence[Record]) -> str:
    return records[0].subject.split(".")[1]


async def taken(events: AsyncGenerator[Logged, None], count: int | None = None) -> list[Logged]:
    """All, or the first ones."""
    found: list[Logged] = []
    async with aclosing(events):
        async for one in events:
            found.append(one)
            if len(found) == count:
                break
    return found


@settings(max_examples=tries(4, 600), deadline=None)
@given(cases(), st.data())
def test_a_tail_from_any_position_is_the_rest(
    case: tuple[str, dict[str, tuple[str, ...]], int], data: st.DataObject
) -> None:
    name, wanted, _ = case
    after = data.draw(st.sampled_from([one.position for one, *_ in naive(name).found]))
    expected = [one for one in naive(name).passing(**wanted) if not after.covers(one.position)]
    asked: dict[str, Any] = {"after": str(after), "follow": False, **wanted}
    assert asyncio.run(taken(client(log(name)).events(**asked))) == expected


@settings(max_examples=tries(4, 400), deadline=None)
@given(cases(), st.data())
def test_a_log_without_its_start_is_filtered_with_its_snapshot(
    case: tuple[str, dict[str, tuple[str, ...]], int], data: st.DataObject
) -> None:
    name, wanted, begin = case
    after = data.draw(st.integers(begin, len(log(name))))

    async def read() -> list[Logged]:
        late = await beginning_late(log(name), begin)
        return await taken(Tail(late, "*", Filter(**wanted), after=Position(after)).events())

    assert asyncio.run(read()) == [one for one in naive(name).passing(**wanted) if one.position.seq > after]


@settings(max_examples=tries(4, 400), deadline=None)
@given(cases(), st.integers(0, 30))
def test_the_last_ones(case: tuple[str, dict[str, tuple[str, ...]], int], count: int) -> None:
    name, wanted, end = case

    async def read() -> list[Logged]:
        whole = FewInABatch(log(name))
        first = await before_last(whole, "*", Filter(**wanted), count, end)
        return await taken(Tail(whole, "*", Filter(**wanted), after=first, until=end).events())

    passing = [one for one in naive(name).passing(**wanted) if one.position.seq <= end]
    assert asyncio.run(read()) == passing[max(0, len(passing) - count) :]


async def test_the_last_ones_of_a_long_log_are_found_without_reading_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dorm.client.tail._WINDOW", 10)
    whole = FewInABatch(log("demo"))
    end = await whole.end()
    await before_last(whole, "*", Filter(kinds=("AppProgressed",)), 3, end)
    assert min(whole.read_from) >= end - 100
    assert await before_last(whole, "*", Filter(kinds=("NodeLost",)), 3, end) == Position(0)


async def test_an_interrupted_reader_continues_at_its_position() -> None:
    records = log("golden")
    wanted = Filter(kinds=("Resized", "AppAccepted", "GenerationReleased"))
    seen: list[Logged] = []
    position = Position(0)
    for count in itertools.cycle((1, 2, 3)):
        tail = Tail(FewInABatch(records), "*", wanted, after=position)
        some = await taken(tail.events(), count)
        # The last one was yielded, and the reader asked for no more.
        assert not some or not tail.position.covers(some[-1].position) or len(some) < count
        seen += some
        if len(some) < count:
            break
        position = some[-1].position
    assert seen == naive("golden").passing(kinds=wanted.kinds)
    assert tail.position == Position(len(records))


async def test_following_continues_with_new_records() -> None:
    records = log("users")
    whole = FewInABatch(records[:40])
    follower = Client(whole, MemoryBus(lambda: 0), "test", user="me").events(after="20", users=["ann"])
    expected = [one for one in naive("users").passing(users=("ann",)) if one.position.seq > 20]
    taking = asyncio.create_task(taken(follower, len(expected)))
    await asyncio.sleep(0)
    for record in records[40:]:
        async with whole._grown:
            whole._store(record)
            whole._grown.notify_all()
        await asyncio.sleep(0)
    assert await asyncio.wait_for(taking, 5) == expected


class OutOfReach(FewInABatch):
    """Its first reads break off in the middle."""

    outages = 3

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        async with aclosing(super().read(after=after, subjects=subjects, follow=follow)) as batches:
            async for batch in batches:
                yield batch
                if self.outages:
                    self.outages -= 1
                    raise LogUnavailable("out of reach")


async def test_followers_learn_of_changes_even_through_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dorm.client.tail._PAUSE_S", 0)
    wanted = Filter(users=("bob",))
    expected = [one for one in naive("users").passing(users=("bob",)) if one.position.seq > 40]
    tail = Tail(OutOfReach(log("users")), "test", wanted, after=Position(40), follow=True)
    assert await taken(tail.events(), len(expected)) == expected
    with pytest.raises(LogUnavailable):
        await taken(Tail(OutOfReach(log("users")), "test", wanted, after=Position(40)).events())


@pytest.mark.parametrize("name", LOGS)
async def test_reading_starts_at_a_time_or_a_duration_before_the_last_record(name: str) -> None:
    records = log(name)
    times = sorted({record.time for record in records})
    for time in (0, times[0], times[len(times) // 2], times[-1], times[-1] + 1):
        time -= time % 1000  # a datetime has microseconds
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time // 1000)
        expected = [one for one in naive(name).passing() if one.time >= time]
        assert await taken(client(records).events(since=when, follow=False)) == expected
    span = timedelta(microseconds=(times[-1] - times[len(times) // 2]) // 1000)
    since = times[-1] - span // timedelta(microseconds=1) * 1000
    expected = [one for one in naive(name).passing() if one.time >= since]
    assert await taken(client(records).events(since=span, follow=False)) == expected


@pytest.mark.parametrize(
    ("wrong", "code", "named"),
    [
        ({"after": "x"}, "position.malformed", "'x'"),
        ({"after": -1}, "position.malformed", "'-1'"),
        ({"after": "1", "since": timedelta(1)}, "tail.begin.given_twice", ""),
        ({"since": datetime(2026, 1, 1)}, "tail.since.no_zone", ""),  # noqa: DTZ001
        ({"kinds": ["AppSubmited"]}, "tail.kind.unknown", "AppSubmitted"),
        ({"kinds": ["checkpoint"]}, "tail.kind.unknown", "AppCheckpointed"),
        ({"kinds": ["Round"]}, "tail.kind.unknown", "AppAccepted, "),
    ],
)
async def test_invalid_questions(wrong: dict[str, Any], code: str, named: str) -> None:
    with raises(ValueError, code, named):
        await anext(client(log("golden")).events(**wrong))


async def test_a_position_beyond_the_end_is_refused() -> None:
    with raises(LogDamaged, "log.truncated"):
        await taken(client(log("golden")).events(after=10**6, follow=False))
