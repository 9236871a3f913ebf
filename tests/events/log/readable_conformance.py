"""The contract of every log for readers.

A test module subclasses `ReadableConformance` and provides the fixture `holding`, which makes a log of given records.
"""

from __future__ import annotations

import asyncio
import bisect
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import pytest

from events.log.records import LogDamaged, Record
from events.subjects import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.interface import ReadableLog

CLUSTER = "conform"
ALICE = "dorm.conform.AppSubmitted.alice"
BOB = "dorm.conform.AppSubmitted.bob"
NODE = "dorm.conform.ContainerStarted.n1"
ROUND = "dorm.conform.round.master"
PATTERNS = [
    ["dorm.conform.*.alice"],
    ["dorm.conform.AppSubmitted.*"],
    ["dorm.conform.*.*"],
    ["dorm.conform.>"],
    [ROUND],
    [ROUND, "dorm.conform.*.n1"],
    ["dorm.conform.*.alice", "dorm.conform.AppSubmitted.*"],
    [ALICE, ALICE, BOB],
    ["dorm.conform.*.nobody"],
    ["dorm.other.*.*"],
    ["dorm.conform.AppSubmitted"],
]
"""Filters: those that a server can apply, and those that it can't."""


class Holding(Protocol):
    async def __call__(self, records: Sequence[Record]) -> ReadableLog:
        """Return a log of cluster `CLUSTER` that holds these records.  Its store may give them other times.  Called once."""
        ...


async def read_all(log: ReadableLog, after: int = 0, subjects: Sequence[str] = ()) -> list[Record]:
    return [record async for batch in log.read(after=after, subjects=subjects) for record in batch]


def records_of(count: int, subjects: Sequence[str] = (ALICE,)) -> list[Record]:
    """So many records, on these subjects in turn."""
    return [
        Record(seq, seq * 10, subjects[seq % len(subjects)], b"body %d" % seq, f"id-{seq}")
        for seq in range(1, count + 1)
    ]


class ReadableConformance:
    """`holding` makes the log."""

    async def test_a_log_without_records(self, holding: Holding) -> None:
        log = await holding([])
        assert (await log.start(), await log.end(), await log.torn()) == (0, 0, "")
        assert await read_all(log) == []
        assert await read_all(log, subjects=["dorm.conform.*.alice"]) == []
        assert await log.last_on(ALICE) is None
        assert await log.record_at(1) is None
        assert await log.at_time(2**62) == 0

    async def test_records_come_back_as_they_were(self, holding: Holding) -> None:
        bodies = [b"one", b"", bytes(range(256)), b'{"json": true}', "grün".encode()]
        given = [Record(seq, seq, ALICE, body, f"id-{seq}") for seq, body in enumerate(bodies, 1)]
        log = await holding(given)
        records = await read_all(log)
        assert [(r.seq, r.subject, r.body, r.msg_id) for r in records] == [
            (r.seq, r.subject, r.body, r.msg_id) for r in given
        ]
        assert all(type(record.body) is bytes for record in records)
        assert await log.end() == 5

    async def test_a_body_of_a_megabyte(self, holding: Holding) -> None:
        bodies = [b"small", bytes(range(256)) * 4_000, b"after"]
        log = await holding([Record(seq, seq, ALICE, body) for seq, body in enumerate(bodies, 1)])
        assert [record.body for record in await read_all(log)] == bodies
        last = await log.last_on(ALICE)
        assert last is not None
        assert last.body == b"after"

    async def test_a_read_starts_after_any_sequence(self, holding: Holding) -> None:
        log = await holding(records_of(2100))
        records = await read_all(log)
        assert [record.seq for record in records] == list(range(1, 2101))
        for after in (1, 999, 1000, 1023, 1024, 1025, 2047, 2048, 2099, 2100):
            assert await read_all(log, after) == records[after:]

    async def test_the_sequence_at_a_time(self, holding: Holding) -> None:
        log = await holding(records_of(30))
        times = [record.time for record in await read_all(log)]
        moments = {0, 2**62, *(time + step for time in times for step in (-1, 0, 1))}
        for moment in sorted(moments):
            assert await log.at_time(moment) == bisect.bisect_right(times, moment)

    async def test_each_record_is_found_by_its_sequence(self, holding: Holding) -> None:
        log = await holding(records_of(3))
        records = await read_all(log)
        assert [await log.record_at(seq) for seq in range(5)] == [None, *records, None]

    async def test_the_last_record_on_each_subject(self, holding: Holding) -> None:
        log = await holding(records_of(7, [BOB, ALICE, ALICE]))
        records = await read_all(log)
        assert await log.last_on(ALICE) == records[6]
        assert await log.last_on(BOB) == records[5]
        assert await log.last_on(NODE) is None

    @pytest.mark.parametrize("patterns", PATTERNS, ids=str)
    async def test_a_read_is_filtered(self, holding: Holding, patterns: list[str]) -> None:
        log = await holding(records_of(40, [ALICE, BOB, NODE, ROUND]))
        everything = await read_all(log)
        wanted = [record for record in everything if any(matches(pattern, record.subject) for pattern in patterns)]
        assert await read_all(log, subjects=patterns) == wanted
        assert await read_all(log, 17, patterns) == [record for record in wanted if record.seq > 17]

    async def test_readers_do_not_disturb_each_other(self, holding: Holding) -> None:
        log = await holding(records_of(1500))
        async with aclosing(log.read()) as batches:
            assert (await anext(batches))[0].seq == 1  # A reader that stops early.
        whole, part, again = await asyncio.gather(read_all(log), read_all(log, 700), read_all(log))
        assert [record.seq for record in whole] == list(range(1, 1501))
        assert (part, again) == (whole[700:], whole)

    async def test_a_log_shorter_than_the_read_position_is_damaged(self, holding: Holding) -> None:
        log = await holding(records_of(2))
        for attempt in (read_all(log, 7), read_all(log, 7, [ALICE])):
            with pytest.raises(LogDamaged):
                await attempt
