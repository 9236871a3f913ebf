"""Findings about the servers and their streams, from recorded answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dorm.doctor.cluster_findings import judge_clock, judge_servers, judge_streams
from dorm.doctor.findings import Finding, gravest_first
from events.nats.streams import ClockState, Copy, ServerState, StreamState, compared

LEADER = Copy("s1", True, True, False, 0.0, 0)
WELL = [LEADER, Copy("s2", False, True, False, 0.3, 0), Copy("s3", False, True, False, 0.8, 0)]


def levels(findings: list[Finding]) -> list[str]:
    return [one.level for one in findings]


def copy(**fields: Any) -> Copy:
    return msgspec.structs.replace(WELL[1], **fields)


def log(**fields: Any) -> StreamState:
    return StreamState(**{"name": "DORM-lab", "replicas": 3, "copies": WELL, "last": 9, "size": 100, **fields})


@pytest.mark.parametrize(
    ("stream", "expected", "words"),
    [
        (log(), ["ok"], "3 copies, all current: s1, s2, s3"),
        (log(replicas=1, copies=[LEADER]), ["note"], "one copy, on s1, though there are 3 servers"),
        (log(copies=[LEADER, copy(offline=True), WELL[2]]), ["wrong"], "the copy on s2 is not heard"),
        (log(copies=[LEADER, copy(active_s=60.0), WELL[2]]), ["wrong"], "the copy on s2 is not heard"),
        (log(copies=[LEADER, copy(current=False, lag=7), WELL[2]]), ["wrong"], "the copy on s2 is 7 records behind"),
        (log(copies=[LEADER, copy(current=False, lag=0), WELL[2]]), ["wrong"], "the copy on s2 is not current"),
        (log(copies=WELL[:2]), ["wrong"], "2 of 3 copies are placed"),
        (
            log(copies=[LEADER, copy(offline=True), copy(server="s3", offline=True)]), ["wrong"] * 3,
            "1 of 3 copies are heard: nothing can be stored",
        ),
        (log(limit=1000), ["ok", "ok"], "takes 100 of 1,000 bytes"),
        (log(limit=110), ["ok", "wrong"], "takes 100 of 110 bytes"),
        (StreamState("DORM-lab", missing=True), ["wrong"], "the stream is gone"),
        (StreamState("DORM-lab", error="no answer"), ["unknown"], "no answer"),
        (
            StreamState("DORM_reports-lab", missing=True), ["unknown"],
            "the stream is not there; a cluster that an earlier release made may have another one",
        ),
    ],
)  # fmt: skip
def test_a_stream(stream: StreamState, expected: list[str], words: str) -> None:
    found = list(judge_streams([stream], 3))
    assert levels(found) == expected
    assert words in [one.text for one in found]
    assert all(one.todo for one in found if one.level == "wrong")


def test_servers() -> None:
    seen = [
        ServerState("s1:4222", name="s1", version="2.15.1", answers_in_s=0.002),
        ServerState("s2:4222", name="s2", version="2.14.0", answers_in_s=0.7),
        ServerState("s3:4222", error="no NATS server answers at s3:4222; start a cluster with `dorm up`"),
    ]
    found = list(judge_servers(seen))
    assert levels(found) == ["ok", "wrong", "wrong", "note"]
    assert found[2].about == "s3:4222"
    assert found[2].text.endswith("no NATS server answers at s3:4222")  # Its advice is for one who looks for a cluster.
    assert levels(gravest_first(found)) == ["wrong", "wrong", "note", "ok"]


@pytest.mark.parametrize(
    ("clock", "level"),
    [
        (None, "unknown"),
        (ClockState(1.5, 0.0), "ok"),
        (ClockState(-30.0, 0.1), "wrong"),
        (ClockState(5.0, 4.0), "ok"),  # The answer took so long that nothing is known.
    ],
)
def test_a_clock(clock: ClockState | None, level: str) -> None:
    assert judge_clock("clock", "n1", clock, "this one").level == level


def test_a_clock_is_compared_with_the_middle_of_the_round_trip() -> None:
    assert compared(105.0, 100.0, 102.0) == ClockState(ahead_s=4.0, within_s=1.0)
