"""A span of time as the dashboard draws it: it agrees with the states, and its size follows from the drawing's width."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.state import State
from replay.page import timeline as page_timeline
from replay.page.timeline import APPS, timeline
from replay.timeline.fold import Watcher
from replay.timeline.fold import timeline as picture_of
from replay.timeline.lanes import AppLane, Partition, Phase, Timeline
from tests.replay.busy import busy_log
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from events.log.records import Record

MS = 1_000_000


def drawn(records: list[Record]) -> Timeline:
    return asyncio.run(picture_of(log_of(records)))


def test_spans_agree_with_the_states(records: list[Record]) -> None:
    picture = drawn(records)
    whole = timeline(picture, width=4000)
    assert {app.id for app in whole.apps} == set(picture.apps)
    checked = 0
    for app in whole.apps:
        lane = picture.apps[app.id]
        for begin, end, containers, phase in app.spans:
            middle = picture.start + round((begin + end) / 2 * MS)
            size, held = lane.sizes.at(middle), lane.phases.at(middle)
            if end - begin < 2 * (picture.end - picture.start) / MS / 4000:
                continue  # Merged: what held longest is shown.
            checked += 1
            assert containers == (max(size.held, size.decided) if size else 0)
            assert held is not None
            adjusts = held.phase in ("adjusting", "starting", "stopping")
            assert phase == held.phase or (adjusts and phase in ("stop", "wait", "start"))
        assert all(one.end == other.begin for one, other in pairwise(app.spans))
    assert checked > 10
    assert [one.position for one in whole.decisions] == [one.position for one in picture.decisions]
    assert {one.position for one in whole.failures} <= {one.position for one in whole.marks}


def test_a_generation_that_ends_before_all_of_it_started_is_shown_as_ending() -> None:
    lane = AppLane(id="app-1", name="app", user="ann", submitted_at=MS, n_min=2, n_max=2, seq=1)
    lane.phases.put(MS, Phase("starting", 1, "", "", "Round 1"))
    lane.phases.put(21 * MS, Phase("ending", 1, "", "", "ContainerExited 2"))
    lane.partitions[1] = Partition(1, "start", "1.0", MS, 2, {"node-1": 2}, released_at=11 * MS, ended_at=41 * MS)
    whole = timeline(Timeline(start=MS, end=41 * MS, apps={"app-1": lane}), width=1000)
    assert [(span.begin, span.end, span.phase) for span in whole.apps[0].spans] == [
        (0, 10, "wait"),
        (10, 20, "start"),
        (20, 40, "ending"),
    ]


@pytest.mark.parametrize("width", [1, 7, 100])
def test_its_size_follows_from_the_width(width: int) -> None:
    picture = drawn(busy_log(3000, apps=8, nodes=4))
    found = timeline(picture, width=width)
    assert found.apps
    assert max(len(app.spans) for app in found.apps) <= width + 1
    assert max(len(points) for points in found.figures.values()) <= 2 * width + 2


def test_apps_are_in_pages_by_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_timeline, "APPS", 3)
    picture = drawn(busy_log(1500, apps=8, nodes=4))
    seen: list[str] = []
    after: int | None = 0
    while after is not None:
        one = timeline(picture, page=after)
        assert len(one.apps) <= 3 < APPS
        seen += [app.id for app in one.apps]
        after = one.next
    assert seen == [lane.id for lane in sorted(picture.apps.values(), key=lambda lane: (lane.seq, lane.id))]
    assert [app.id for app in timeline(picture, apps=seen[4:6]).apps] == seen[4:6]


def test_a_window_contains_the_apps_that_lived_in_it() -> None:
    records = busy_log(2000, apps=8, nodes=4)
    picture = drawn(records)
    length = picture.end - picture.start
    since, until = picture.start + length // 3, picture.start + length // 2
    found = timeline(picture, since, until, width=500)
    assert {app.id for app in found.apps} == {
        lane.id
        for lane in picture.apps.values()
        if lane.phases.times[0] <= until and (not lane.ended_at or lane.ended_at >= since)
    }
    assert all(0 <= span.begin <= span.end <= (until - since) / MS for app in found.apps for span in app.spans)
    assert all(0 <= one.at <= (until - since) / MS for one in found.decisions)


def test_a_growing_picture_can_be_drawn(written: list[Record]) -> None:
    """While the log is followed, `now` is how far the fold has come."""
    state = State()
    watcher = Watcher(state)
    for record in written:
        watcher.see(state, record, evolve(state, record))
        found = timeline(watcher.picture, now=state.time)
        assert all(app.spans[-1].end <= (state.time - watcher.picture.start) / MS for app in found.apps if app.spans)
    assert msgspec.json.encode(found) == msgspec.json.encode(timeline(drawn(written)))
    assert b'"from":' in msgspec.json.encode(found)


def test_too_many_marks_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_timeline, "MARKS", 10)
    picture = drawn(busy_log(2000, apps=8, nodes=4))
    found = timeline(picture)
    assert len(picture.marks) > 10 < len(picture.decisions)
    assert len(found.marks) <= 10
    assert len(found.decisions) <= 10
