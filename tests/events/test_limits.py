"""Text that is too long keeps its beginning, and says how much is missing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.limits import LONGEST_TEXT, clipped


@given(st.integers(0, 5_000_000), st.sampled_from([50, 200, LONGEST_TEXT]))
def test_a_clipped_text_fits_and_counts_what_it_left_out(length: int, longest: int) -> None:
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
def test_where_not_even_the_count_fits_nothing_raises(longest: int) -> None:
    assert clipped("a" * 100, longest)
