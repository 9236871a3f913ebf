"""The contract of every log that accepts appends.

A test module subclasses `LogConformance` and provides the fixture `log`.  The tests for readers run on it too.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
import pytest

from events.appending import append_event
from events.codec import decode, encode
from events.kinds import ContainerExited, ContainerStarted, Round
from events.log.records import Appended, LogDamaged, Overtaken, Record
from tests.events.log.readable_conformance import ALICE, BOB, NODE, PATTERNS, ROUND, ReadableConformance, read_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.interface import EventLog, ReadableLog
    from tests.events.log.readable_conformance import Holding


async def follow_until(log: ReadableLog, count: int, after: int = 0, subjects: Sequence[str] = ()) -> list[Record]:
    """The first `count` records that a follower sees."""
    seen: list[Record] = []
    async with aclosing(log.read(after=after, subjects=subjects, follow=True)) as batches:
        async for batch in batches:
            assert batch
            seen += batch
            if len(seen) >= count:
                return seen
    raise AssertionError("a follower ended by itself")


async def fill(log: EventLog, count: int, subject: str = ALICE) -> None:
    for number in range(count):
        await log.append(subject, b"%d" % number)


class LogConformance(ReadableConformance):
    """`log` gives an empty log of cluster `CLUSTER`."""

    @pytest.fixture
    def holding(self, log: EventLog) -> Holding:
        async def hold(records: Sequence[Record]) -> ReadableLog:
            for record in records:
                assert await log.append(record.subject, record.body, msg_id=record.msg_id) == Appended(record.seq)
            return log

        return hold

    async def test_appended_records_are_read_back_as_they_were(self, log: EventLog) -> None:
        bodies = [b"one", b"", bytes(range(256)), b'{"json": true}', "grün".encode()]
        for number, body in enumerate(bodies, 1):
            assert await log.append(ALICE, body, msg_id=f"id-{number}") == Appended(number)
        records = await read_all(log)
        assert [record.body for record in records] == bodies
        assert [record.seq for record in records] == [1, 2, 3, 4, 5]
        assert {record.subject for record in records} == {ALICE}
        assert [record.msg_id for record in records] == [f"id-{number}" for number in range(1, 6)]
        assert all(type(record.body) is bytes for record in records)
        assert await log.end() == 5

    async def test_log_time_never_goes_back(self, log: EventLog) -> None:
        await fill(log, 50)
        times = [record.time for record in await read_all(log)]
        assert times == sorted(times)
        assert times[0] > 0

    async def test_many_records_come_contiguous_and_in_order(self, log: EventLog) -> None:
        async with asyncio.TaskGroup() as tasks:
            for first in range(0, 2500, 250):
                tasks.create_task(self._append_many(log, range(first, first + 250)))
        records = await read_all(log)
        assert [record.seq for record in records] == list(range(1, 2501))
        assert sorted(int(record.body) for record in records) == list(range(2500))

    async def _append_many(self, log: EventLog, numbers: range) -> None:
        for number in numbers:
            await log.append(ALICE, b"%d" % number)

    async def test_concurrent_appends_get_a_sequence_each(self, log: EventLog) -> None:
        appended = await asyncio.gather(*(log.append(ALICE, b"%d" % n, msg_id=f"id-{n}") for n in range(100)))
        assert sorted(stored.seq for stored in appended) == list(range(1, 101))
        by_seq = {record.seq: record.body for record in await read_all(log)}
        assert [by_seq[stored.seq] for stored in appended] == [b"%d" % number for number in range(100)]

    async def test_an_append_with_a_known_id_changes_nothing(self, log: EventLog) -> None:
        first = await log.append(ALICE, b"one", msg_id="alice-1")
        await log.append(BOB, b"two", msg_id="bob-1")
        again = await log.append(ALICE, b"one", msg_id="alice-1")
        elsewhere = await log.append(BOB, b"other", msg_id="alice-1")
        assert not first.duplicate
        assert (again.seq, again.duplicate) == (1, True)
        assert (elsewhere.seq, elsewhere.duplicate) == (1, True)
        assert [record.body for record in await read_all(log)] == [b"one", b"two"]

    async def test_an_event_is_stored_even_if_its_id_is_taken(self, log: EventLog) -> None:
        """By other kinds, other publishers, other words, and by several of the ids that would be used instead."""
        exited = ContainerExited(
            id="n1.digits-1-0.exited", at=7, by="n1", app="digits", generation=1, slot=0, node="n1", exit_code=3
        )
        subject = "dorm.conform.ContainerExited.n1"
        other = encode(msgspec.structs.replace(exited, generation=2))
        await log.append(ALICE, b"anything", msg_id=exited.id)
        await log.append("dorm.conform.ContainerExited.n2", encode(exited), msg_id=f"{exited.id}~1")
        await log.append(subject, other, msg_id=f"{exited.id}~2")
        stored = await append_event(log, subject, exited)
        assert (stored.seq, stored.duplicate) == (4, False)
        assert decode((await read_all(log))[3]) == exited

        # The same publisher, which does not know that it is stored, and saw it otherwise the second time.
        again = msgspec.structs.replace(exited, at=99, exit_code=None, reason="lost", message="gone")
        assert (await append_event(log, subject, exited)).seq == 4
        assert (await append_event(log, subject, again)).seq == 4
        assert await log.end() == 4

    async def test_an_event_is_stored_even_if_a_stranger_keeps_guessing(self, log: EventLog) -> None:
        started = ContainerStarted(id="n1.s", at=7, by="n1", app="digits", generation=1, slot=0, node="n1")
        for id in ("n1.s", *(f"n1.s~{number}" for number in range(1, 40))):
            await log.append(ALICE, b"anything", msg_id=id)
        stored = await append_event(log, NODE, started)
        assert (await log.record_at(stored.seq)) is not None
        assert await log.end() == stored.seq == 41

    async def test_a_fenced_event_is_stored_even_if_its_id_is_taken(self, log: EventLog) -> None:
        event = Round(id="m1.1.0.ab", at=1, by="m1", epoch=1, basis=0, allocated=False, events=[])
        await log.append(ALICE, b"anything", msg_id=event.id)
        with pytest.raises(Overtaken):
            await append_event(log, ROUND, event, expected_last=1)
        stored = await append_event(log, ROUND, event, expected_last=0)
        assert (stored.seq, stored.duplicate) == (2, False)
        assert (await append_event(log, ROUND, event, expected_last=2)).seq == 2
        assert await log.end() == 2

    async def test_appends_without_an_id_are_never_duplicates(self, log: EventLog) -> None:
        assert not (await log.append(ALICE, b"one")).duplicate
        assert not (await log.append(ALICE, b"one")).duplicate
        assert await log.end() == 2

    async def test_the_expected_last_sequence_fences_a_subject(self, log: EventLog) -> None:
        await log.append(ROUND, b"one", expected_last=0)
        await log.append(ALICE, b"between")
        second = await log.append(ROUND, b"two", expected_last=1)
        assert second.seq == 3
        for stale in (0, 1, 2, 4):
            with pytest.raises(Overtaken) as error:
                await log.append(ROUND, b"late", expected_last=stale)
            assert "\n" not in str(error.value)
        assert [record.body for record in await read_all(log)] == [b"one", b"between", b"two"]

    async def test_a_retry_of_a_fenced_append_is_overtaken_by_itself(self, log: EventLog) -> None:
        await log.append(ROUND, b"one", expected_last=0, msg_id="round-1")
        with pytest.raises(Overtaken):
            await log.append(ROUND, b"one", expected_last=0, msg_id="round-1")
        last = await log.last_on(ROUND)
        assert last is not None
        assert last.msg_id == "round-1"
        assert await log.end() == 1
        assert (await log.append(ROUND, b"one", expected_last=1, msg_id="round-1")).duplicate

    async def test_one_of_several_fenced_writers_wins(self, log: EventLog) -> None:
        attempts = (log.append(ROUND, b"%d" % writer, expected_last=0) for writer in range(20))
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Appended"] + ["Overtaken"] * 19
        assert await log.end() == 1

    @pytest.mark.parametrize("patterns", PATTERNS, ids=str)
    async def test_a_follower_is_filtered(self, log: EventLog, patterns: list[str]) -> None:
        for number in range(40):
            await log.append([ALICE, BOB, NODE, ROUND][number % 4], b"%d" % number)
        wanted = await read_all(log, subjects=patterns)
        if wanted:
            assert await follow_until(log, len(wanted), subjects=patterns) == wanted

    async def test_a_read_ends_at_the_end_of_the_log_at_its_start(self, log: EventLog) -> None:
        await fill(log, 3)
        seen = []
        async for batch in log.read():
            seen += batch
            await fill(log, 3)
        assert [record.seq for record in seen] == [1, 2, 3]
        assert await log.end() >= 6

    async def test_a_filtered_read_ends_too(self, log: EventLog) -> None:
        await log.append(ALICE, b"one")
        await fill(log, 3, BOB)
        seen = []
        async for batch in log.read(subjects=["dorm.conform.*.alice"]):
            seen += batch
            await log.append(ALICE, b"more")
        assert [record.body for record in seen] == [b"one"]

    async def test_followers_see_later_appends(self, log: EventLog) -> None:
        await fill(log, 3)
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            all_of_it = [tasks.create_task(follow_until(log, 10)) for _ in range(3)]
            later = tasks.create_task(follow_until(log, 5, after=3))
            bobs = tasks.create_task(follow_until(log, 3, subjects=[BOB]))
            await log.append(BOB, b"bob")
            await fill(log, 4)
            await log.append(BOB, b"bob")
            await log.append(BOB, b"bob")
        records = await read_all(log)
        assert all(task.result()[:10] == records for task in all_of_it)
        assert later.result()[:5] == records[3:8]
        assert [record.seq for record in bobs.result()] == [4, 9, 10]

    async def test_a_follower_may_start_at_the_end(self, log: EventLog) -> None:
        await fill(log, 2)
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow_until(log, 1, after=2))
            await log.append(ALICE, b"new")
        assert [record.body for record in following.result()] == [b"new"]

    async def test_a_cancelled_follower_leaves_the_log_usable(self, log: EventLog) -> None:
        await fill(log, 2)
        first = asyncio.Event()

        async def follow() -> None:
            async for _ in log.read(follow=True):
                first.set()

        following = asyncio.create_task(follow())
        await asyncio.wait_for(first.wait(), 20)
        following.cancel()
        await asyncio.wait({following})
        assert following.cancelled()
        assert (await log.append(ALICE, b"three")).seq == 3
        assert len(await read_all(log)) == 3

    async def test_a_cancelled_append_leaves_the_log_whole(self, log: EventLog) -> None:
        for number in range(20):
            appending = asyncio.create_task(log.append(ALICE, b"%d" % number, msg_id=f"id-{number}"))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            appending.cancel()
            await asyncio.wait({appending})
        for number in range(20):
            await log.append(ALICE, b"%d" % number, msg_id=f"id-{number}")
        records = await read_all(log)
        assert [record.seq for record in records] == list(range(1, 21))
        assert sorted(int(record.body) for record in records) == list(range(20))

    async def test_following_a_log_shorter_than_the_read_position_fails(self, log: EventLog) -> None:
        await fill(log, 2)
        with pytest.raises(LogDamaged):
            await follow_until(log, 1, after=7)
