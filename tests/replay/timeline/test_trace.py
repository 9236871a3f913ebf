"""A timeline for Perfetto: valid by the Trace Event Format, and with everything that the picture has."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replay.timeline.fold import timeline
from replay.timeline.lanes import Timeline, TimelineError
from replay.timeline.trace import events_of, trace
from tests.core.virtual.world import World
from tests.errors import raises
from tests.replay.busy import busy_log
from tests.replay.made_log import log_of
from tests.tries import tries

if TYPE_CHECKING:
    from events.log.records import Record

_KEYS = {
    "M": {"ph", "pid", "tid", "name", "args"},
    "X": {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"},
    "C": {"ph", "pid", "tid", "name", "ts", "args"},
    "i": {"ph", "pid", "tid", "name", "cat", "ts", "s", "args"},
    "s": {"ph", "pid", "tid", "name", "cat", "ts", "id"},
    "f": {"ph", "pid", "tid", "name", "cat", "ts", "id", "bp"},
}


def drawn(records: list[Record]) -> Timeline:
    return asyncio.run(timeline(log_of(records)))


def check(document: dict[str, Any], length_us: float) -> None:
    """What the format asks for, and that no slices of a track cross each other."""
    events = document["traceEvents"]
    named = {(one["pid"], one["tid"]) for one in events if one["ph"] == "M"}
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    latest = 0.0
    for one in events:
        assert set(one) == _KEYS[one["ph"]]
        assert (one["pid"], one["tid"]) in named
        if one["ph"] == "M":
            assert latest == 0.0
            continue
        assert latest <= one["ts"] <= length_us
        latest = one["ts"]
        if one["ph"] == "X":
            assert one["dur"] >= 0
            assert one["ts"] + one["dur"] <= length_us + 1e-3
            tracks[one["pid"], one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
        elif one["ph"] == "C":
            assert one["args"]
            assert all(isinstance(value, int | float) for value in one["args"].values())
        elif one["ph"] == "i":
            assert one["s"] in ("g", "p", "t")
    for slices in tracks.values():
        for before, after in pairwise(slices):
            assert after[0] >= before[1] - 1e-3 or after[1] <= before[1] + 1e-3
    check_flows(events, tracks)


def check_flows(events: list[dict[str, Any]], tracks: dict[tuple[int, int], list[tuple[float, float]]]) -> None:
    """Each begins once and ends once, later, at a slice."""
    begins = {one["id"]: one for one in events if one["ph"] == "s"}
    ends = {one["id"]: one for one in events if one["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == sum(one["ph"] == "s" for one in events)
    for number, begin in begins.items():
        end = ends[number]
        assert begin["ts"] <= end["ts"]
        assert any(a <= end["ts"] <= b for a, b in tracks[end["pid"], end["tid"]])


def test_a_trace_of_a_real_log_is_valid(records: list[Record]) -> None:
    picture = drawn(records)
    document = json.loads(trace(picture, "a log"))
    check(document, (picture.end - picture.start) / 1000)
    assert document["otherData"]["start"] == picture.start
    events = document["traceEvents"]
    names = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {"cluster", *picture.nodes, *(lane.name for lane in picture.apps.values())}
    assert sum(one["name"].startswith("decision ") for one in events) == len(picture.decisions)
    adjusted = sum(len(lane.adjustments) for lane in picture.apps.values())
    assert sum(one["ph"] == "X" and one["name"] == "stop" for one in events) >= adjusted > 0
    assert sum(one["ph"] == "s" for one in events) >= adjusted
    assert {one["args"].get("percent") for one in events if one["name"] == "cpu allocated %"} >= {0.0}


def test_a_trace_of_a_busy_cluster_is_valid() -> None:
    picture = drawn(busy_log(3000, apps=10, nodes=5, tick_s=20))
    check(json.loads(trace(picture, "busy")), (picture.end - picture.start) / 1000)


@settings(max_examples=tries(4, 10), deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_trace_of_any_history_is_valid(seed: int) -> None:
    picture = drawn(World(seed, steps=80).run().log)
    check({"traceEvents": events_of(picture)}, (picture.end - picture.start) / 1000)


def test_nothing_to_draw() -> None:
    with raises(TimelineError, "timeline.empty"):
        trace(drawn([]), "empty")
