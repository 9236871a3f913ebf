"""The contract of every stream of progress."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from events.log.records import LogRefused
from events.log.stores import upto
from events.subjects import progress
from tests.events.log.readable_conformance import CLUSTER

if TYPE_CHECKING:
    from events.log.interface import EventLog
    from events.log.records import Record
    from events.log.stores import ReadableProgress

A, B = (progress(CLUSTER, "n1", app) for app in ("a-1", "b-1"))
ELSEWHERE = progress(CLUSTER, "n2", "a-1")


async def everything(found: ReadableProgress, *, after: int = 0, app: str = "*") -> list[Record]:
    async with aclosing(found.read(after=after, app=app)) as batches:
        return [record async for batch in batches for record in batch]


class ProgressConformance:
    """`log` gives an empty log of cluster `CLUSTER`."""

    async def test_an_empty_store_has_no_reports(self, log: EventLog) -> None:
        assert (await log.progress.end(), await everything(log.progress), await log.progress.newest()) == (0, [], [])
        assert await log.progress.at_time(2**62) == 0

    async def test_reports_are_read_back_in_order_of_all_apps_or_of_one(self, log: EventLog) -> None:
        for subject, body in ((A, b"1"), (B, b"2"), (ELSEWHERE, b"3"), (A, b"4")):
            await log.progress.put(subject, body, msg_id=f"id-{body.decode()}")
        await log.progress.put(A, b"4", msg_id="id-4")
        found = await everything(log.progress)
        assert [(one.seq, one.subject, one.body) for one in found] == [
            (1, A, b"1"), (2, B, b"2"), (3, ELSEWHERE, b"3"), (4, A, b"4")
        ]  # fmt: skip
        assert [one.body for one in await everything(log.progress, app="a-1", after=1)] == [b"3", b"4"]
        assert [one.body for one in await log.progress.newest()] == [b"2", b"3", b"4"]
        assert [one.body for one in await log.progress.newest("b-1")] == [b"2"]
        assert await log.progress.end() == 4
        assert await log.end() == 0

    async def test_a_time_leads_to_a_place(self, log: EventLog) -> None:
        for body in (b"1", b"2", b"3"):
            await log.progress.put(A, body)
        times = [one.time for one in await everything(log.progress)]
        assert times == sorted(times)
        assert [await log.progress.at_time(time) for time in (times[0] - 1, times[1], times[2])] == [0, 2, 3]
        assert [one.body for one in await upto(log.progress, times[1], times[0])] == [b"2"]

    async def test_a_follower_gets_later_reports(self, log: EventLog) -> None:
        await log.progress.put(A, b"1")
        async with asyncio.timeout(20), aclosing(log.progress.read(after=0, follow=True)) as batches:
            assert [one.body for one in await anext(batches)] == [b"1"]
            await log.progress.put(B, b"2")
            assert [one.body for one in await anext(batches)] == [b"2"]

    async def test_only_subjects_of_progress_are_taken(self, log: EventLog) -> None:
        with pytest.raises(LogRefused):
            await log.progress.put(f"dorm.{CLUSTER}.AppProgressed.n1", b"1")
