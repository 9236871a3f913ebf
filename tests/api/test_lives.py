"""Continued stories and explanations equal those of a fold from the start, and fold each record once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.api.errors import Missing
from dorm.api.follower import RecentLog
from dorm.api.lives import Life, Lives, Subject
from dorm.api.options import Limits
from dorm.api.past_folds import Moments
from dorm.api.threads import Heavy
from dorm.core.state import digest
from events import subjects
from events.codec import encode
from events.kinds import AppSubmitted
from events.log.memory import MemoryLog
from replay.moments import AtSequence
from replay.simulator.forks.starting import Outlook, forecast
from replay.story import Witness, tell
from replay.story.explanation import explain
from replay.story.story import follow
from tests.api.test_following import RECORDS, following
from tests.core.records import document
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.api.follower import Follower
    from events.log.records import Record

LENGTH = 400


def lives_of(follower: Follower, recent: RecentLog, **limits: Any) -> Lives:
    heavy = Heavy(2, 100)
    return Lives(follower, recent, Moments(follower, heavy, 1 << 20), heavy, Limits(**limits))


class TimedLog(MemoryLog):
    """One with the times of the records that it gets."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now = 0

    async def take(self, records: list[Record]) -> None:
        for record in records:
            self.now = record.time
            await self.append(record.subject, record.body)


@contextlib.asynccontextmanager
async def on_a_log() -> AsyncIterator[tuple[TimedLog, Follower, RecentLog]]:
    log = TimedLog()
    await log.take(RECORDS[:LENGTH])
    async with following(log) as follower:
        recent = RecentLog(follower)
        await follower.reach(LENGTH, 20)
        yield log, follower, recent


def told(life: Life) -> tuple[bytes, Any, Any, str]:
    """Every question to a life; asking changes nothing."""
    found = explain(life.state, life.witness, life.state.time)
    start = forecast(life.outlook, life.state, found.id, found.at)
    return msgspec.json.encode(life.story), found, start, digest(life.state)


async def test_a_continued_fold_equals_a_fold_from_the_start() -> None:
    async with on_a_log() as (log, follower, recent):
        apps = (await follower.look(lambda state: [(app.seq, app.name) for app in state.apps.values()]))[:2]
        lives = lives_of(follower, recent)
        for submitted, name in apps:
            for seq in sorted({submitted + 2, LENGTH // 2, LENGTH}):
                if seq < submitted:
                    continue
                # Twice: asking the first time must not have changed anything.
                again = [await lives.ask(Subject(name), seq, told) for _ in range(2)]
                assert again[0] == again[1]
                witness, outlook = Witness(name), Outlook()
                state = await follow(log, name, [witness, outlook], AtSequence(seq))
                found = explain(state, witness, state.time)
                story = await tell(log, name, AtSequence(seq))
                fresh = msgspec.json.encode(story), found, forecast(outlook, state, found.id, found.at), digest(state)
                assert again[0] == fresh
        node = (await follower.look(lambda state: sorted(state.nodes)))[0]
        for seq in (LENGTH // 2, LENGTH):
            expected = await tell(log, node, AtSequence(seq), node=True)
            assert await lives.ask(Subject(node, node=True), seq, lambda life: life.story) == expected


async def test_a_record_is_followed_once_regardless_of_the_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[int] = []
    original = Life.follow

    def counted(self: Life, records: list[Any]) -> None:
        followed.extend(record.seq for record in records)
        original(self, records)

    monkeypatch.setattr(Life, "follow", counted)
    async with on_a_log() as (_, follower, recent):
        lives = lives_of(follower, recent)
        submitted, name = await follower.look(lambda state: min((app.seq, app.name) for app in state.apps.values()))
        for seq in (LENGTH - 100, LENGTH - 50, LENGTH, LENGTH):
            await lives.ask(Subject(name), seq, told)
        assert followed == sorted(set(followed))
        assert followed[0] <= submitted
        assert followed[-1] == LENGTH
        # A reader of the past moves forward independently of the present.
        followed.clear()
        for seq in (LENGTH - 90, LENGTH - 80, LENGTH, LENGTH - 70):
            await lives.ask(Subject(name), seq, told)
        assert followed == sorted(set(followed))
        assert followed[-1] == LENGTH - 70


async def test_unknown_names_cost_no_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_a_log() as (log, follower, recent):
        lives = lives_of(follower, recent)
        monkeypatch.setattr(Life, "follow", lambda *_: pytest.fail("the log is folded"))
        for number in range(3):
            with raises(Missing, "app.not_found"):
                await lives.ask(Subject(f"nobody-{number}"), LENGTH, told)
            with raises(Missing, "node.not_found"):
                await lives.ask(Subject(f"nobody-{number}", node=True), LENGTH, told)
        assert not lives._known
        with raises(Missing, "app.not_found"):
            await lives.ask(Subject("late"), LENGTH, told)
        monkeypatch.undo()
        subject = subjects.fact(follower.cluster, AppSubmitted.__name__, "ann")
        await log.append(subject, encode(AppSubmitted(id="late.1", spec=document("late"))))
        await follower.reach(LENGTH + 1, 20)
        (chapter,) = (await lives.ask(Subject("late"), LENGTH + 1, lambda life: life.story)).chapters  # type: ignore[union-attr]
        assert chapter.what == "submitted"
