"""What people write after --at."""

from __future__ import annotations

import pytest

from replay.moments import AtSequence, AtTime, BeforeEnd, Moment, MomentError, parse

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", AtSequence(0)),
        (" 120 ", AtSequence(120)),
        ("20261121", AtSequence(20261121)),
        ("-10m", BeforeEnd(600 * SECOND)),
        ("-1.5h", BeforeEnd(5400 * SECOND)),
        ("-250ms", BeforeEnd(SECOND // 4)),
        ("-0", BeforeEnd(0)),
        ("1970-01-01", AtTime(0)),
        ("1970-01-01T00:00:01", AtTime(SECOND)),
        ("1970-01-01 00:00:01.5Z", AtTime(3 * SECOND // 2)),
        ("1970-01-01T01:00:00.000001+01:00", AtTime(1000)),
        ("2026-11-21T09:00:00Z", AtTime(1_795_251_600 * SECOND)),
    ],
)
def test_moments_are_read(text: str, moment: Moment) -> None:
    assert parse(text) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "-", "-10x", "--5m", "1.5", "2026-13-01", "12:00", "٣", "9" * 30])
def test_what_is_no_moment_says_what_would_be(text: str) -> None:
    with pytest.raises(MomentError, match=r"write "):
        parse(text)


def test_the_last_day_of_the_calendar_has_a_time() -> None:
    assert isinstance(parse("9999-12-31T23:59:59Z"), AtTime)
    with pytest.raises(MomentError):
        parse("0001-01-01T00:00:00+14:00")
