"""A tail that reads a log with the progress beside it."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing

from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.client.tail import EVER, Filter, Tail, before_last
from events import subjects
from events.codec import encode
from events.kinds import AppProgressed, ContainerStarted
from events.log.memory import MemoryLog
from events.log.records import LogRefused
from events.log.stores import NoProgress
from events.positions import Position, parse
from tests.tries import tries

CLUSTER, APP, OTHER = "lab", "a-aaaaaa", "b-bbbbbb"


async def made(course: str) -> MemoryLog:
    """`l` is a record of the log, `p` one of the stream, and `o` one of another app there."""
    log = MemoryLog(itertools.count(1).__next__)
    for number, what in enumerate(course):
        if what == "l":
            event = ContainerStarted(id=f"l{number}", app=APP, generation=1, slot=0, node="n1")
            await log.append(subjects.fact(CLUSTER, "ContainerStarted", "n1"), encode(event))
        else:
            app = APP if what == "p" else OTHER
            said = AppProgressed(id=f"p{number}", app=app, generation=1, step=number)
            await log.progress.put(subjects.progress(CLUSTER, "n1", app), encode(said), msg_id=said.id)
    return log


async def taken(tail: Tail) -> list[str]:
    async with aclosing(tail.events()) as found:
        return [f"{one.event.id}@{one.position}" async for one in found]


async def test_both_streams_are_merged_by_time_with_separate_positions() -> None:
    log = await made("plppl")
    assert await taken(Tail(log, CLUSTER, Filter())) == ["p0@0~1", "l1@1", "p2@1~2", "p3@1~3", "l4@2"]


async def test_filters_hold_for_both() -> None:
    log = await made("lpolo")
    assert await taken(Tail(log, CLUSTER, Filter(apps=(APP,)))) == ["l0@1", "p1@1~1", "l3@2"]
    assert await taken(Tail(log, CLUSTER, Filter(kinds=("ContainerStarted",)))) == ["l0@1", "l3@2"]
    assert await taken(Tail(log, CLUSTER, Filter(kinds=("AppProgressed",)))) == ["p1@1~1", "p2@1~2", "p4@2~3"]
    assert await taken(Tail(log, CLUSTER, Filter(nodes=("n2",)))) == []


async def test_a_part_of_the_log_has_the_progress_of_that_time() -> None:
    log = await made("plplp")
    assert await taken(Tail(log, CLUSTER, Filter(), after=Position(1), until=2)) == ["p2@1~2", "l3@2"]
    assert await taken(Tail(log, CLUSTER, Filter(), after=Position(1), until=2, latest=EVER)) == [
        "p2@1~2", "l3@2", "p4@2~3"
    ]  # fmt: skip


async def test_the_last_events_come_from_both_streams() -> None:
    log = await made("lpplp")
    for count, first in ((1, "p4"), (2, "l3"), (3, "p2")):
        begin = await before_last(log, CLUSTER, Filter(), count, await log.end(), EVER)
        found = await taken(Tail(log, CLUSTER, Filter(), after=begin, latest=EVER, until=await log.end()))
        assert (len(found), found[0].partition("@")[0]) == (count, first)


@settings(max_examples=tries(20, 400))
@given(
    st.text("lpo", min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from([Filter(), Filter(kinds=("AppProgressed",)), Filter(apps=(APP,)), Filter(apps=(APP, OTHER))]),
)
def test_a_report_has_one_position_for_all_readers(course: str, seq: int, beside: int, wanted: Filter) -> None:
    """Wherever a reader begins, and whatever it leaves out."""

    async def read() -> tuple[list[str], list[str]]:
        log = await made(course)
        whole = await taken(Tail(log, CLUSTER, Filter()))
        after = Position(min(seq, await log.end()), None, beside)
        until = max(after.seq, await log.end() - 1)
        return whole, [
            *await taken(Tail(log, CLUSTER, wanted, after=after)),
            *await taken(Tail(log, CLUSTER, wanted, after=after, until=until, latest=EVER)),
        ]

    whole, found = asyncio.run(read())
    assert set(found) <= set(whole)


@settings(max_examples=tries(5, 40))
@given(st.text("lpo", max_size=12), st.integers(0, 12))
def test_a_reader_resumes_exactly_where_it_stopped(course: str, stops: int) -> None:
    async def resumed() -> tuple[list[str], list[str]]:
        log = await made(course)
        whole = await taken(Tail(log, CLUSTER, Filter()))
        first = Tail(log, CLUSTER, Filter())
        found: list[str] = []
        async with aclosing(first.events()) as events:
            async for one in events:
                if len(found) == stops:
                    break
                found.append(f"{one.event.id}@{one.position}")
        return whole, found + await taken(Tail(log, CLUSTER, Filter(), after=parse(str(first.position))))

    whole, found = asyncio.run(resumed())
    assert found == whole


async def test_a_follower_gets_later_records_of_both_streams() -> None:
    log = await made("pl")
    async with asyncio.timeout(20), aclosing(Tail(log, CLUSTER, Filter(), follow=True).events()) as events:
        found = [await anext(events), await anext(events)]
        said = AppProgressed(id="later", app=APP, generation=1, step=9)
        await log.progress.put(subjects.progress(CLUSTER, "n1", APP), encode(said))
        found.append(await anext(events))
        last = ContainerStarted(id="last", app=APP, generation=1, slot=0, node="n1")
        await log.append(subjects.fact(CLUSTER, "ContainerStarted", "n1"), encode(last))
        found.append(await anext(events))
    assert [f"{one.event.id}@{one.position}" for one in found] == ["p0@0~1", "l1@1", "later@1~2", "last@2"]


class Forbidden(NoProgress):
    """The stream as an identity sees it that may not read it."""

    async def end(self) -> int:
        raise LogRefused("no")


class WithoutProgress(MemoryLog):
    @property
    def progress(self) -> NoProgress:  # type: ignore[override]
        return Forbidden()


async def test_without_access_to_the_progress_the_log_is_read() -> None:
    log = WithoutProgress(itertools.count(1).__next__, (await made("lpl")).records)
    assert await taken(Tail(log, CLUSTER, Filter())) == ["l0@1", "l2@2"]
