"""Subjects and patterns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events import subjects
from tests.errors import raises

TOKENS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join)
PATTERNS = st.tuples(st.lists(st.sampled_from("abc*"), min_size=1, max_size=4), st.sampled_from([[], [">"]])).map(
    lambda parts: ".".join(parts[0] + parts[1])
)


@given(PATTERNS, PATTERNS, TOKENS)
def test_patterns_that_match_one_subject_overlap(one: str, other: str, subject: str) -> None:
    assert subjects.overlap(one, other) == subjects.overlap(other, one)
    if subjects.matches(one, subject) and subjects.matches(other, subject):
        assert subjects.overlap(one, other)


def test_distinct_patterns_do_not_overlap() -> None:
    assert not subjects.overlap("a.*", "a")
    assert not subjects.overlap("a.>", "a")
    assert not subjects.overlap("a.*.c", "*.b.d")
    assert subjects.overlap("a.*", "*.b")
    assert subjects.overlap("a.>", "a.b.c")


@given(st.text(max_size=100))
def test_any_name_becomes_one_token(who: str) -> None:
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


def test_reports_and_rounds_are_distinguished() -> None:
    assert subjects.kind_of(subjects.report("c", "n1")) == "NodeReported"
    assert subjects.kind_of(subjects.rounds("c")) == "Round"
    assert not subjects.matches(subjects.log_subjects("c"), subjects.report("c", "n1"))
    assert subjects.matches(subjects.reports("c"), subjects.report("c", "n1"))


def test_formatting_of_subjects() -> None:
    assert subjects.fact("c", "AppSubmitted", "a n") == "dorm.c.AppSubmitted.a_n"
    assert subjects.rounds("c") == "dorm.c.round.master"
    assert subjects.log_subjects("c") == "dorm.c.*.*"
    assert subjects.facts_by("c", "a.n") == "dorm.c.*.a_n"
    assert subjects.fact_pattern("c", "NodeJoined") == "dorm.c.NodeJoined.*"
    assert subjects.report("c", "n>") == "dorm.c.report.n_.NodeReported"
    assert subjects.reports("c") == "dorm.c.report.*.NodeReported"
    assert subjects.ask("c", "n 1", "logs") == "dorm.c.ask.n_1.logs"
    assert subjects.token("") == "_"
    assert subjects.token("x" * 65) == "x" * 64


def test_publisher_and_place_are_read_from_a_subject() -> None:
    assert subjects.who_of("dorm.c.AppSubmitted.ann") == "ann"
    assert subjects.who_of("dorm.c.report.n1.NodeReported") == "n1"
    assert subjects.who_of("dorm.c.AppSubmitted") == ""
    assert subjects.cluster_of("dorm.c.AppSubmitted.ann") == "c"
    assert subjects.cluster_of("dorm.c.report.n1.NodeReported") == "c"
    assert subjects.cluster_of("dorm.c.AppSubmitted") == ""
    assert subjects.cluster_of("other.c.AppSubmitted.ann") == ""
    assert subjects.kind_of("dorm.c.Round.master") == ""
    assert subjects.kind_of("dorm.c.round.ann") == "round"
    assert subjects.kind_of("dorm.c.ask.n1.logs") == ""
    assert subjects.kind_of("dorm.c.AppSubmitted") == ""


def test_wildcards() -> None:
    assert subjects.matches("a.*.c", "a.b.c")
    assert subjects.matches("a.>", "a.b")
    assert subjects.matches("a.>", "a.b.c.d")
    assert subjects.matches(">", "a")
    for pattern, subject in [("a.>", "a"), ("a.*", "a"), ("a.*", "a.b.c"), ("a.b", "a"), ("a", "a.b"), ("a.b", "a.c")]:
        assert not subjects.matches(pattern, subject)


@pytest.mark.parametrize("name", ["c", "lab_2", "A-1", "x" * 64])
def test_a_cluster_name_is_one_token(name: str) -> None:
    assert subjects.check_cluster(name) == name


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ä", "*", "x" * 65, "x" * 100])
def test_other_cluster_names_are_refused(name: str) -> None:
    with raises(ValueError, "cluster.name.malformed", repr(name[:80])) as refused:
        subjects.check_cluster(name)
    assert str(refused.value).startswith(f"cluster name {name[:80]!r}:")
