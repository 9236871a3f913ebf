"""Spans follow from the log alone: the same ids and times wherever the export begins, and phases that fit each other."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.state import State
from events import kinds as k
from replay.traces import Span, Tracer, trace_id
from tests.replay.busy import busy_log
from tests.replay.made_log import Story, all_facts, two_apps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.records import Record


def spans_of(records: Sequence[Record], state: State | None = None, cluster: str = "c") -> list[Span]:
    found: list[Span] = []
    state = state or State()
    tracer = Tracer(cluster, found.append)
    tracer.begin(state)
    for record in records[state.seq :]:
        tracer.see(state, record, evolve(state, record))
    return found


@pytest.fixture(scope="module")
def busy() -> list[Record]:
    return busy_log(2500, apps=20, nodes=6)


def test_a_story_in_spans() -> None:
    story = Story(nodes=1)
    story.submit("one", n_max=3)
    story.settle()
    story.work()
    story.submit("two", n_min=1, n_max=3)
    story.settle()
    story.exit("one", 0)
    story.settle()
    found = [one for one in spans_of(story.records) if one.attributes["dorm.app.name"] == "one"]
    names = [one.name for one in found]
    assert names[:2] == ["wait", "start"]
    assert names[-1] == "app"
    assert {"run", "stop", "room"} <= set(names)
    app = found[-1]
    assert app.parent == ""
    assert app.attributes["dorm.outcome"] == "completed"
    assert all(
        one.parent == app.span and one.trace == app.trace == trace_id("c", str(app.attributes["dorm.app"]))
        for one in found[:-1]
    )
    assert all(app.begin <= one.begin <= one.end <= app.end for one in found)


def test_phases_follow_each_other_without_gaps_or_overlap() -> None:
    """From the first wait to the end, every moment of an app that was only resized is in one phase."""
    story = Story(nodes=2)
    story.submit("one", n_max=4)
    story.settle()
    story.work()
    story.submit("two", n_max=4)
    story.settle()
    story.work()
    for name in ("one", "two"):
        story.exit(name, 0)
        story.settle()
    found = spans_of(story.records)
    for app in {one.trace for one in found}:
        phases = sorted(
            (one for one in found if one.trace == app and one.name != "app"), key=lambda one: (one.begin, one.end)
        )
        (whole,) = (one for one in found if one.trace == app and one.name == "app")
        assert all(before.end == after.begin for before, after in pairwise(phases)), phases
        assert phases[-1].end == whole.end


def test_a_failure_is_an_error_with_its_reason() -> None:
    story = Story(nodes=1)
    story.submit("bad", retries={"limit": 0})
    story.settle()
    story.exit("bad", 3)
    story.settle()
    found = {one.name: one for one in spans_of(story.records)}
    (failed,) = all_facts(story.records, k.AppFailed)
    assert found["app"].error == failed.reason != ""
    assert found["run"].error != ""
    assert found["wait"].error == ""


def test_an_export_from_any_moment_makes_the_same_spans(busy: list[Record]) -> None:
    for records in (busy, two_apps().records):
        whole = spans_of(records)
        assert len({one.span for one in whole}) == len(whole) > 5
        state, done = State(), 0
        for seq in sorted({len(records) * part // 7 for part in range(1, 7)}):
            while state.seq < seq:
                record = records[state.seq]
                evolve(state, record)
            kept: State = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)
            rest = spans_of(records, kept)
            assert rest == whole[len(whole) - len(rest) :]
            done += bool(rest)
        assert done


def test_ids_differ_between_clusters_and_apps(busy: list[Record]) -> None:
    here, there = spans_of(busy[:800]), spans_of(busy[:800], cluster="other")
    assert not {one.span for one in here} & {one.span for one in there}
    assert not {one.trace for one in here} & {one.trace for one in there}
    by_trace: dict[str, set[object]] = {}
    for one in here:
        by_trace.setdefault(one.trace, set()).add(one.attributes["dorm.app"])
    assert all(len(apps) == 1 for apps in by_trace.values())
    assert copy.copy(here[0]) == here[0]


def test_a_void_round_makes_no_spans() -> None:
    story = two_apps()
    before = spans_of(story.records)
    live = next(story.state.live_apps(), None)
    app = live.id if live is not None else "one"
    story.round([k.AppCompleted(app=app, generation=1)], epoch=1)
    assert spans_of(story.records) == before
