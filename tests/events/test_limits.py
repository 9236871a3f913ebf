"""Overlong text keeps its beginning, with the number of omitted characters; shared bounds leave room for others."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.limits import LONGEST_TEXT, Shares, clipped


@given(st.integers(0, 5_000_000), st.sampled_from([50, 200, LONGEST_TEXT]))
def test_a_clipped_text_fits_and_counts_the_omitted_characters(length: int, longest: int) -> None:
    text = "a" * length
    shown = clipped(text, longest)
    assert len(shown) <= longest
    if length <= longest:
        assert shown == text
    else:
        counted = re.fullmatch(r"(a+)\.\.\. \(([\d,]+) more characters\)", shown)
        assert counted is not None
        assert len(counted[1]) + int(counted[2].replace(",", "")) == length


@pytest.mark.parametrize("longest", [0, 3, 20])
def test_a_limit_too_short_for_the_count_raises_no_error(longest: int) -> None:
    assert clipped("a" * 100, longest)


@given(st.integers(2, 300), st.integers(1, 50))
def test_shares_leave_room_for_a_newcomer(most: int, parties: int) -> None:
    shares, had = Shares(most), [0] * min(parties, most // 2)
    while any(shares.has_room_for(str(party)) for party in range(len(had))):
        for party in range(len(had)):
            if shares.has_room_for(str(party)):
                shares.take(str(party))
                had[party] += 1
    assert max(had) - min(had) <= 1
    assert max(had) == max(1, most // 2 + most % 2) if len(had) == 1 else max(had) <= most // 2
    assert shares.has_room_for("next")
    for _ in range(had[0]):
        shares.leave("0")
    assert shares.has_room_for("0")


def test_a_held_place_is_returned() -> None:
    shares = Shares(2)
    with shares.held("a"):
        assert not shares.has_room_for("a")
        assert shares.has_room_for("b")
    assert shares.has_room_for("a")
