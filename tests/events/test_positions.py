"""Places in the log, as text and in order."""

from __future__ import annotations

import pytest

from events.codec import encode
from events.kinds import AppCancelled, AppCompleted, AppSubmitted, MasterFact, Round, Unknown
from events.log.records import Record
from events.positions import Logged, Position, logged, parse
from tests.errors import raises


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("0", Position(0)),
        ("118", Position(118)),
        ("118.0", Position(118, 0)),
        ("118.2", Position(118, 2)),
        ("999999999999999999.999999999", Position(10**18 - 1, 10**9 - 1)),
    ],
)
def test_a_position_is_its_text(text: str, position: Position) -> None:
    assert parse(text) == position
    assert parse(f" {text}\n") == position
    assert str(position) == text


@pytest.mark.parametrize("text", ["", "x", "-1", "1.", ".1", "1.2.3", "1 .2", "٣", "1" * 19, "1." + "1" * 10, "118x"])
def test_other_text_is_refused_with_an_example(text: str) -> None:
    with raises(ValueError, "position.malformed", repr(text)) as refused:
        parse(text)
    assert str(refused.value).startswith(repr(text))


def test_a_long_text_is_quoted_in_part() -> None:
    with raises(ValueError, "position.malformed", "'" + "x" * 60 + "'"):
        parse("x" * 1000)


@pytest.mark.parametrize(
    ("read", "other", "covered"),
    [
        (Position(5), Position(4), True),
        (Position(5), Position(4, 9), True),
        (Position(5), Position(6), False),
        (Position(5), Position(6, 0), False),
        (Position(5), Position(5), True),
        (Position(5), Position(5, 7), True),
        (Position(5, 3), Position(5, 2), True),
        (Position(5, 3), Position(5, 3), True),
        (Position(5, 3), Position(5, 4), False),
        (Position(5, 0), Position(5), True),
        (Position(5, 0), Position(5, 1), False),
        (Position(5, 3), Position(4, 9), True),
    ],
)
def test_a_read_position_covers_all_earlier_ones(read: Position, other: Position, covered: bool) -> None:
    assert read.covers(other) is covered


def test_a_record_holds_one_event_or_the_facts_of_a_round() -> None:
    event = AppSubmitted(id="e1", at=7, by="ann", spec={"name": "a"})
    record = Record(3, 70, "dorm.c.AppSubmitted.ann", encode(event))
    assert list(logged(record)) == [Logged(Position(3), 70, "dorm.c.AppSubmitted.ann", event)]
    facts: list[MasterFact | Unknown] = [AppCompleted(app="a", generation=1), AppCancelled(app="b", generation=0)]
    round = Round(id="r1", at=8, by="master", basis=3, epoch=1, allocated=False, events=facts)
    subject = "dorm.c.round.master"
    assert list(logged(Record(4, 80, subject, encode(round)))) == [
        Logged(Position(4, index), 80, subject, fact, round) for index, fact in enumerate(facts)
    ]


def test_a_position_of_progress_covers_log_positions_before_it() -> None:
    assert parse("118~57") == Position(118, None, 57)
    assert str(parse("118.2~57")) == "118.2~57"
    assert parse("118.2~57").covers(Position(118, 1))
    assert not parse("118.2~57").covers(Position(118, 3))
    assert parse("118.2~57").covers(Position(200, None, 57))
    assert not parse("118.2~57").covers(Position(100, None, 58))
    assert not parse("118.2").covers(Position(100, None, 1))
