"""CloudEvents 1.0: every event meets the specification and keeps its whole content."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, get_args
from urllib.parse import urlsplit

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events import subjects
from events.cloudevents import cloud_event, plain, rfc3339, type_of
from events.codec import decode, encode
from events.kinds import (
    AppAccepted,
    AppSubmitted,
    ContainerStarted,
    Event,
    MasterElected,
    MasterFact,
    NodeLost,
    Published,
    Round,
    Unknown,
    Unreadable,
)
from events.log.records import Record
from events.positions import Position, logged, parse
from tests.core.nonsense import nonsense
from tests.errors import raises
from tests.events.any_event import MASTER_FACTS, PUBLISHED, events_of, subject_of
from tests.tries import tries

# Section 2 of the JSON format and sections 3 and 4 of the core specification, version 1.0.2.
REQUIRED = {"id", "source", "specversion", "type"}
OPTIONAL = {"datacontenttype", "dataschema", "subject", "time", "data"}
NAME = re.compile(r"[a-z0-9]{1,20}")
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def check(event: dict[str, Any]) -> None:
    """By the specification alone."""
    assert event.keys() >= REQUIRED
    assert event["specversion"] == "1.0"
    for name, value in event.items():
        assert NAME.fullmatch(name), name
        if name == "data":
            continue
        assert isinstance(value, str), f"{name}: all of ours are strings, URI-references or timestamps"
        assert value, f"{name} is empty"
        assert not FORBIDDEN.search(value)
    assert urlsplit(event["source"]).path == event["source"]
    assert re.fullmatch(r"io\.dorm(\.[a-z][a-z_]*)+\.v\d+", event["type"])
    assert RFC3339.fullmatch(event["time"])
    assert datetime.fromisoformat(event["time"]).tzinfo is not None
    assert event["datacontenttype"] == "application/json"
    assert not event.keys() - REQUIRED - OPTIONAL - {"sequence", "dormby", "dormcause", "dormepoch", "dormbasis"}


def strictly(document: Any) -> Any:
    """As a parser reads it that takes nothing which is not JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(msgspec.json.encode(document), parse_constant=refuse)


@pytest.mark.parametrize("kind", [*PUBLISHED, *MASTER_FACTS], ids=lambda kind: kind.__name__)
@settings(max_examples=tries(4, 25), deadline=None)
@given(data=st.data())
def test_every_event_is_a_cloudevent_with_its_whole_content(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(events_of(kind))
    facts: list[Any] = [event] if kind in MASTER_FACTS else []
    whole = Round(id="r", at=1, by="m", epoch=3, basis=6, allocated=False, events=facts) if facts else event
    record = Record(7, data.draw(st.integers(0, 2**62)), subject_of(type(whole)), encode(whole))
    for one in logged(record):
        made = strictly(cloud_event(one))
        check(made)
        assert made["id"] == ("7.0" if facts else "7") or kind is Round
        assert made["data"] == strictly(one.event)
        assert made["data"]["kind"] == type(one.event).__name__


def test_foreign_records_become_cloudevents_too() -> None:
    app: dict[Any, Any] = {"name": "x"}
    odd = [
        {**app, None: 1, (1, 2): 3},
        {**app, "when": msgpack.Timestamp(5), "ext": msgpack.ExtType(5, b"abc"), "bytes": b"\xff"},
        {**app, "nan": float("nan"), "inf": float("inf")},
    ]
    bodies = [("AppSubmitted.a", msgpack.packb({"spec": spec, "by": "\x00\x9f", "cause": "\n"})) for spec in odd]
    deep: Any = {}
    for _ in range(600):
        deep = {"deeper": deep}
    bodies.append(("AppSubmitted.a", msgspec.json.encode({"spec": deep})))
    for number, (subject, body) in enumerate([*nonsense("n", "x-abcdef"), *bodies], 1):
        for one in logged(Record(number, 10**30, f"dorm.c.{subject}", body)):
            check(strictly(cloud_event(one)))
            json.dumps(plain(one.event))
    assert isinstance(decode(Record(1, 1, "dorm.c.AppSubmitted.a", bodies[-1][1])), AppSubmitted | Unreadable)


def test_attributes_of_a_fact_in_a_round_and_of_one_outside() -> None:
    fact = NodeLost(node="n1", last_heard=5, cause="3")
    said = Round(
        id="m.1", at=9, by="master-1", epoch=2, basis=40, allocated=False, events=[MasterElected(epoch=2), fact]
    )
    record = Record(41, 1_790_000_000_123_456_789, subjects.rounds("prod"), encode(said))
    assert cloud_event(list(logged(record))[1]) == {
        "specversion": "1.0",
        "id": "41.1",
        "source": "/dorm/prod",
        "type": "io.dorm.node.lost.v1",
        "time": "2026-09-21T14:13:20.123456789Z",
        "subject": "node/n1",
        "datacontenttype": "application/json",
        "sequence": "000000000000000041.000001",
        "dormby": "master-1",
        "dormcause": "3",
        "dormepoch": "2",
        "dormbasis": "40",
        "data": {"kind": "NodeLost", "cause": "3", "node": "n1", "last_heard": 5},
    }
    started = ContainerStarted(id="n1.x", at=3, by="n1", app="x-abcdef", generation=1, slot=0, node="n1")
    outside = cloud_event(next(logged(Record(42, 0, subjects.fact("prod", "ContainerStarted", "n1"), encode(started)))))
    assert (outside["id"], outside["subject"], outside["dormby"]) == ("42", "app/x-abcdef", "n1")
    assert not outside.keys() & {"dormepoch", "dormbasis", "dormcause"}


def test_each_kind_has_a_type_of_its_own() -> None:
    kinds = [cls.__name__ for cls in (*get_args(Published), *get_args(MasterFact), Unknown, Unreadable)]
    assert len({type_of(kind) for kind in kinds}) == len(kinds)
    assert type_of("AppSubmitted") == "io.dorm.app.submitted.v1"
    assert type_of("NodeLeaseEnded", 2) == "io.dorm.node.lease_ended.v2"
    assert [type_of(kind) for kind in ("Resized", "LogSealed", "IdleTicked")] == [
        "io.dorm.resized.v1", "io.dorm.log.sealed.v1", "io.dorm.idle_ticked.v1",
    ]  # fmt: skip
    assert AppAccepted.__name__ in kinds


@given(st.lists(st.integers(0, 253_402_300_799_999_999_999), min_size=2, max_size=2))
def test_times_as_text_sort_as_times(times: list[int]) -> None:
    assert sorted(map(rfc3339, times)) == list(map(rfc3339, sorted(times)))


@given(st.integers(0, 10**15), st.none() | st.integers(0, 10**6), st.integers(0, 10**15), st.none() | st.integers(0, 9))
def test_positions_are_read_back_and_ordered(seq: int, index: int | None, other: int, inner: int | None) -> None:
    position = Position(seq, index)
    assert parse(str(position)) == position
    assert position.covers(position)
    if other != seq:
        assert position.covers(Position(other, inner)) == (other < seq)
    assert position.covers(Position(seq, 0))
    assert Position(seq, 3).covers(Position(seq, 3))
    assert not Position(seq, 3).covers(Position(seq, 4))
    assert not Position(seq, 3).covers(Position(seq + 1))


@pytest.mark.parametrize("text", ["", "x", "-1", "1.", ".1", "1.2.3", "١", "1 2", "9" * 30])
def test_invalid_positions(text: str) -> None:
    with raises(ValueError, "position.malformed"):
        parse(text)
