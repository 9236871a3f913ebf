"""Times that commands show are read by every command, in whatever zone its machine is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from events.cloudevents import rfc3339
from events.instants import Instant, InstantError, clock, day, read, shown
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

TIME = 1_795_251_605_120_456_789
"""2026-11-21 09:00:05.120456789 UTC"""


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("anywhere")
def test_a_shown_time_is_the_one_that_is_read() -> None:
    assert shown(TIME) == "2026-11-21 09:00:05 UTC"
    assert shown(TIME, 3) == f"{day(TIME)} {clock(TIME, 3)} UTC" == "2026-11-21 09:00:05.120 UTC"
    assert read(shown(TIME)) == Instant(TIME // SECOND * SECOND, True, TIME // SECOND * SECOND)
    pasted = read(shown(TIME, 3))
    assert (pasted.time, pasted.zoned) == (TIME // 10**6 * 10**6, True)
    assert pasted.time <= TIME <= pasted.last, "the record that is shown with this time is among those up to it"
    assert read(rfc3339(TIME)) == read(str(TIME)) == Instant(TIME, True, TIME)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    ("text", "expected", "zoned"),
    [
        ("2026-11-21", "2026-11-21 00:00:00 UTC", False),
        ("2026-11-21T09", "2026-11-21 09:00:00 UTC", False),
        (" 2026-11-21 09:00:05 ", "2026-11-21 09:00:05 UTC", False),
        ("2026-11-21T09:00Z", "2026-11-21 09:00:00 UTC", True),
        ("2026-11-21t09:00:05z", "2026-11-21 09:00:05 UTC", True),
        ("2026-11-21 09:00:05 utc", "2026-11-21 09:00:05 UTC", True),
        ("2026-11-21T09:00:05+09:00", "2026-11-21 00:00:05 UTC", True),
        ("2026-11-21 09:00:05 -0800", "2026-11-21 17:00:05 UTC", True),
        ("2026-11-21T09:00:05 09:00", "2026-11-21 00:00:05 UTC", True),  # in a URL that does not quote its plus
    ],
)
def test_a_time_is_read_in_its_zone_or_else_in_utc(text: str, expected: str, zoned: bool) -> None:
    found = read(text)
    assert (shown(found.time), found.zoned) == (expected, zoned)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("09:00", "moment.no_date"),
        ("9:00:05.120 UTC", "moment.no_date"),
        ("2026-11-21 09:00:05 JST", "moment.zone"),
        ("2026-11-21 09:00:05 Asia/Tokyo", "moment.zone"),
        ("2026-13-01", "moment.malformed"),
        ("0001-01-01T00:00+14:00", "moment.malformed"),
        ("2026-11-21T09:00:05+25:00", "moment.malformed"),
        ("2026-11-21T2026-11-21", "moment.malformed"),
        ("yesterday", "moment.malformed"),
        ("", "moment.malformed"),
    ],
)
def test_what_is_missing_is_named(text: str, code: str) -> None:
    with pytest.raises(InstantError) as failed:
        read(text)
    assert failed.value.code == code
    assert "\n" not in str(failed.value)
