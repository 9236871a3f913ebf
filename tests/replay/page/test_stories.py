"""A recording says the same about apps and nodes as `story` and `explain` do for the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from dorm.core.evolve import evolve
from dorm.core.state import State
from replay.moments import AtSequence
from replay.page import stories as page_stories
from replay.page.recording import record
from replay.story.explanation import Witness, explain
from replay.story.story import tell
from replay.travel import state_at
from tests.replay.busy import busy_log
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from events.log.records import Record
    from replay.page.stories import Stories
    from replay.story.chapters import Chapter

RECORDS = busy_log(900, apps=8, nodes=4)


def recorded(records: Sequence[Record], since: int | None = None) -> Stories:
    moment = None if since is None else AtSequence(since)
    return asyncio.run(record(log_of(list(records)), "x", moment)).stories


def plain(chapters: Sequence[Chapter]) -> list[Chapter]:
    nothing = {"partition": None, "changed": None, "work": None, "exit": None, "totals": None}
    return [msgspec.structs.replace(one, **nothing) for one in chapters]


def test_stories_agree_with_the_log() -> None:
    found, log = recorded(RECORDS), log_of(RECORDS)
    state = State()
    for one in RECORDS:
        evolve(state, one)
    assert set(state.nodes) == set(found.nodes)
    assert {app.id for app in state.live_apps()} <= set(found.apps)
    for name, story in [*found.apps.items(), *found.nodes.items()]:
        told = asyncio.run(tell(log, name, node=name in found.nodes))
        chapters = plain(told.chapters)
        assert story.chapters == chapters[-page_stories.MOST_CHAPTERS :]
        assert story.earlier == len(chapters) - len(story.chapters)
    assert found.notes == []


def test_every_explanation_matches_its_moment() -> None:
    found, log = recorded(RECORDS), log_of(RECORDS)
    checked = 0
    for app, turns in found.turns.items():
        assert [int(one.position) for one in turns] == sorted({int(one.position) for one in turns})
        for turn in turns[:: max(1, len(turns) // 3)]:
            witness = Witness(app)
            state = asyncio.run(state_at(log, AtSequence(int(turn.position)), seen=witness.see))
            expected = explain(state, witness, state.time)
            assert (turn.text, turn.speed) == (expected.text, expected.speed)
            checked += 1
    assert checked > 10


def test_a_part_starts_with_the_known_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_stories, "MOST_TURNS", 4)
    found = recorded(RECORDS, 400)
    state = State()
    for one in RECORDS[:400]:
        evolve(state, one)
    early = {app.id for app in state.live_apps()} & set(found.apps)
    assert early
    for app in early:
        assert found.apps[app].chapters[0].what == "known"
    assert max(len(turns) for turns in found.turns.values()) <= 5
    assert min(int(turn.position) for turns in found.turns.values() for turn in turns) >= 400


def test_on_long_logs_only_some_apps_have_stories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_stories, "MOST_LOOKS", 9 * len(RECORDS))
    monkeypatch.setattr(page_stories, "MOST_CHAPTERS", 5)
    monkeypatch.setattr(page_stories, "MOST_EXPLAINING", 100)
    found = recorded(RECORDS)
    assert len(found.apps) == 4
    assert len(found.notes) == 1
    assert "Stories of 4 of " in found.notes[0]
    assert max(len(story.chapters) for story in found.apps.values()) == 5
    assert sum(len(turns) for turns in found.turns.values()) <= 20
