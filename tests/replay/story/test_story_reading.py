"""Where a story is read from: the whole log, a snapshot, a part of a log, any moment; it is the same story."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.snapshot import FOLDED_BY, dump
from dorm.core.state import State, digest
from events import kinds as k
from events.codec import decode
from events.log.memory import MemoryLog
from events.sources import fingerprint
from replay.moments import AtSequence, BeforeEnd
from replay.story.app_teller import AppTeller
from replay.story.explanation import ExplainError, Explanation, Witness, explain
from replay.story.story import StoryError, follow, tell
from tests.core.records import START, Bench
from tests.core.virtual.world import World
from tests.errors import raises
from tests.replay.made_log import log_of, two_apps

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.log.interface import ReadableLog
    from events.log.records import Record


class Watched(MemoryLog):
    """Notes what is read of it."""

    def __init__(self, records: list[Record]) -> None:
        super().__init__(lambda: START)
        self.records = records
        self.given = 0

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        """One by one."""
        for record in self.records[after:]:
            self.given += 1
            yield [record]


async def with_snapshots(records: list[Record], every: int) -> Watched:
    log, state, build = Watched(records), State(), fingerprint(*FOLDED_BY)
    for record in records:
        evolve(state, record)
        if record.seq % every == 0:
            await log.snapshots.put(*dump(state, build=build))
    return log


async def explained(log: ReadableLog, name: str, at: int) -> Explanation | str:
    witness = Witness(name)
    state = await follow(log, name, [witness], AtSequence(at))
    try:
        return explain(state, witness, state.time)
    except ExplainError as error:
        return str(error)


@pytest.mark.parametrize("seed", [None, 3, 4])
async def test_snapshots_change_no_story_and_no_explanation(seed: int | None) -> None:
    records = two_apps().records if seed is None else World(seed, steps=100).run().log
    plain, snapped = log_of(records), await with_snapshots(records, 7)
    events = [decode(record) for record in records]
    facts = [fact for event in events if isinstance(event, k.Round) for fact in event.events]
    names = {fact.spec.name for fact in facts if isinstance(fact, k.AppAccepted)}
    names |= {fact.app for fact in facts if isinstance(fact, k.AppAccepted)}
    for name in sorted(names):
        for at in range(10, len(records) + 1, 23):
            whole, part = AppTeller(name), AppTeller(name)
            first = await follow(plain, name, [whole], AtSequence(at))
            second = await follow(snapped, name, [part], AtSequence(at))
            assert digest(first) == digest(second)
            told = whole.story()
            if first.find_app(name) is not None and whole.id:
                # What had been refused before it was submitted belongs to none of its stories.
                assert part.story() == told
                assert part.totals(second) == whole.totals(first)
            here, there = await explained(plain, name, at), await explained(snapped, name, at)
            if isinstance(here, Explanation):
                assert here == there


async def test_a_late_app_is_read_from_a_late_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.story.story.MARGIN", 10)
    bench = Bench(n1=4)
    bench.running("app", n_max=3)
    app = bench.app()
    for step in range(2000):
        bench.add(k.AppProgressed(app=app.id, generation=1, step=step))
    bench.submit("late", n_max=1)
    bench.settle()
    bench.started("late")
    log = await with_snapshots(bench.records, 100)
    story = await tell(log, "late")
    assert [chapter.what for chapter in story.chapters] == ["submitted", "accepted", "started", "running"]
    assert log.given < 400
    plain = Watched(bench.records)
    assert await tell(plain, "late") == story
    assert plain.given == len(bench.records)


async def test_a_part_of_a_log_describes_itself() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=4)
    start = len(bench.records)
    bench.all_exited()
    bench.settle()

    class Part(Watched):
        async def start(self) -> int:
            return start

    whole = await with_snapshots(bench.records, 1)
    part = Part(bench.records)
    infos = [info for info in await whole.snapshots.infos() if info.seq == start]
    body = await whole.snapshots.get(infos[0])
    assert body is not None
    await part.snapshots.put(infos[0], body)
    story = await tell(part, "app")
    assert [chapter.what for chapter in story.chapters] == ["known", "completed"]
    assert story.chapters[0].partition == {"n1": 4}
    assert "already running where this reading of the log starts" in story.chapters[0].text
    node = await tell(part, "n1")
    assert [chapter.what for chapter in node.chapters] == ["known", "ended"]


async def test_since_a_moment() -> None:
    records = two_apps().records
    story = await tell(log_of(records), "n1", since=AtSequence(30))
    assert story.chapters[0].what == "known"
    assert all(int(chapter.position.split(".")[0]) >= 30 for chapter in story.chapters)
    whole = await tell(log_of(records), "n1")
    late = [chapter for chapter in whole.chapters if int(chapter.position.split(".")[0]) > 30]
    bare = [msgspec.structs.replace(chapter, causes=[]) for chapter in story.chapters[1:]]
    assert bare == [msgspec.structs.replace(chapter, causes=[]) for chapter in late]
    with raises(StoryError, "moment.end_before_start"):
        await tell(log_of(records), "n1", AtSequence(20), since=AtSequence(30))


async def test_a_story_until_a_moment_is_the_start_of_the_whole() -> None:
    records = two_apps().records
    whole = (await tell(log_of(records), "one")).chapters
    for at in range(5, len(records), 7):
        some = (await tell(log_of(records), "one", AtSequence(at))).chapters
        assert some == whole[: len(some)]
        assert all(int(chapter.position.split(".")[0]) > at for chapter in whole[len(some) :])
    assert (await tell(log_of(records), "one", BeforeEnd(10**9))).seq == len(records) - 10


async def test_an_app_goes_before_a_node_of_its_name() -> None:
    bench = Bench(app=4)
    bench.running("app", n_max=1)
    assert (await tell(log_of(bench.records), "app")).kind == "app"
    node = await tell(log_of(bench.records), "app", node=True)
    assert (node.kind, node.id) == ("node", "app")


async def test_names_that_never_were() -> None:
    bench = Bench(node1=4)
    bench.running("digits", n_max=1)
    bench.submit("faces", cpu=9)
    bench.settle()
    log = log_of(bench.records)
    for wrong, meant in (("digit", "digits"), ("face", "faces"), ("node2", "node1")):
        with raises(StoryError, "name.not_found") as refused:
            await tell(log, wrong)
        assert f"did you mean {meant}?" in str(refused.value)
    with raises(StoryError, "node.not_found"):
        await tell(log, "digits", node=True)
    with raises(StoryError, "name.not_found"):
        await tell(log_of([]), "digits")
