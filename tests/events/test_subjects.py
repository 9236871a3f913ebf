"""Subjects and patterns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from events import subjects

TOKENS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join)
PATTERNS = st.tuples(st.lists(st.sampled_from("abc*"), min_size=1, max_size=4), st.sampled_from([[], [">"]])).map(
    lambda parts: ".".join(parts[0] + parts[1])
)


@given(PATTERNS, PATTERNS, TOKENS)
def test_patterns_that_match_one_subject_overlap(one: str, other: str, subject: str) -> None:
    assert subjects.overlap(one, other) == subjects.overlap(other, one)
    if subjects.matches(one, subject) and subjects.matches(other, subject):
        assert subjects.overlap(one, other)


def test_overlap_is_not_claimed_where_there_is_none() -> None:
    assert not subjects.overlap("a.*", "a")
    assert not subjects.overlap("a.>", "a")
    assert not subjects.overlap("a.*.c", "*.b.d")
    assert subjects.overlap("a.*", "*.b")
    assert subjects.overlap("a.>", "a.b.c")


@given(st.text(max_size=100))
def test_whoever_it_is_becomes_one_token(who: str) -> None:
    subject = subjects.fact("c", "AppSubmitted", who)
    assert subjects.valid(subject)
    assert subjects.kind_of(subject) == "AppSubmitted"
    assert subjects.who_of(subject) == subjects.token(who)
    assert subjects.matches(subjects.log_subjects("c"), subject)


@given(st.text(max_size=30))
def test_any_subject_has_a_kind_or_none(subject: str) -> None:
    assert isinstance(subjects.kind_of(subject), str)
    assert isinstance(subjects.who_of(subject), str)


def test_which_subjects_are_valid() -> None:
    assert all(map(subjects.valid, ["a", "a.b", "dorm.c.AppSubmitted.a-b_c@d"]))
    assert not any(map(subjects.valid, ["", ".", "a.", ".a", "a..b", "a b", "a.*", "a.>", "a\n", "a.\x00"]))


def test_reports_and_rounds_are_told_apart() -> None:
    assert subjects.kind_of(subjects.report("c", "n1")) == "NodeReported"
    assert subjects.kind_of(subjects.rounds("c")) == "Round"
    assert not subjects.matches(subjects.log_subjects("c"), subjects.report("c", "n1"))
    assert subjects.matches(subjects.reports("c"), subjects.report("c", "n1"))
