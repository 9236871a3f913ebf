"""What people write after --at."""

from __future__ import annotations

import time

import pytest

from events.quantities import SECOND
from replay.moments import AtSequence, AtTime, BeforeEnd, Moment, MomentError, parse
from tests.errors import raises


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", AtSequence(0)),
        (" 120 ", AtSequence(120)),
        ("20261121", AtSequence(20261121)),
        ("9" * 18, AtSequence(10**18 - 1)),
        ("-10m", BeforeEnd(600 * SECOND)),
        ("-1.5h", BeforeEnd(5400 * SECOND)),
        ("844.0", AtSequence(844)),
        ("118.2~57", AtSequence(118)),
        ("118~57", AtSequence(118)),
        ("-250ms", BeforeEnd(SECOND // 4)),
        ("-0", BeforeEnd(0)),
        ("1970-01-01", AtTime(0)),
        ("1970-01-01T00:00:01", AtTime(SECOND)),
        ("1970-01-01 00:00:01.5Z", AtTime(3 * SECOND // 2)),
        ("1970-01-01T01:00:00.000001+01:00", AtTime(1000)),
        ("2026-11-21T09:00:00Z", AtTime(1_795_251_600 * SECOND)),
        ("1795251600000000001", AtTime(1_795_251_600 * SECOND + 1)),
    ],
)
def test_moments_are_read(text: str, moment: Moment) -> None:
    assert parse(text) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "1.5.5", "1.", "1~", "2026-13-01", "٣", "9" * 20, "x" * 60])
def test_invalid_moments_are_quoted(text: str) -> None:
    with raises(MomentError, "moment.malformed") as refused:
        parse(text)
    assert str(refused.value).startswith(repr(text))


def test_a_time_of_day_needs_its_date() -> None:
    with raises(MomentError, "moment.no_date") as refused:
        parse("12:00")
    assert str(refused.value) == "'12:00' has no date; add it, as in 2026-11-21T12:00Z"


def test_a_long_text_is_quoted_in_part() -> None:
    with raises(MomentError, "moment.malformed") as refused:
        parse("x" * 61)
    assert str(refused.value).startswith(repr("x" * 60) + " ")


@pytest.mark.parametrize(
    ("text", "code"),
    [("-", "malformed"), ("-10x", "malformed"), ("--5m", "malformed"), ("-9999d", "out_of_range")],
)
def test_invalid_spans_are_quoted(text: str, code: str) -> None:
    with raises(MomentError, f"moment.{code}") as refused:
        parse(text)
    assert str(refused.value).startswith(f"{text!r}: {text[1:]!r}")


def test_a_time_without_a_zone_is_utc_wherever_the_reader_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        there.setenv("TZ", "UTC-5")
        time.tzset()
        assert parse("1970-01-01T00:00:01") == AtTime(SECOND)
        assert parse("1970-01-01T05:00:01+05:00") == AtTime(SECOND)
    time.tzset()


def test_microseconds_are_exact() -> None:
    moment = parse("9999-12-31T23:59:59.999999Z")
    assert moment == AtTime(253_402_300_799_999_999_000)
    assert isinstance(moment, AtTime)
    assert isinstance(moment.time, int)


def test_the_last_day_of_the_calendar_has_a_time() -> None:
    assert isinstance(parse("9999-12-31T23:59:59Z"), AtTime)
    with pytest.raises(MomentError):
        parse("0001-01-01T00:00:00+14:00")
