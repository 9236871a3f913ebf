"""Outcomes are read as people write them, and an error names the character."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.quantities import SECOND
from replay.bisect import All, Any, Happens, Has, Measures, Not, Outcome, OutcomeError, Stands, atoms, parse
from tests.tries import tries

END = 1_700_003_600 * SECOND
"""2023-11-14 23:13:20 UTC."""
TEN = (1_700_003_600 - 47_600) * SECOND
"""10:00 on that day."""


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("digits completed before 10:00", Happens("digits", "completed", before=True, time=TEN)),
        ("digits-mlp failed after 2023-11-14T10:00", Happens("digits-mlp", "failed", before=False, time=TEN)),
        ("a ended before 2023-11-14T11:00+01:00", Happens("a", "ended", before=True, time=TEN)),
        ("a started before -10m", Happens("a", "started", before=True, time=END - 600 * SECOND)),
        ("a waiting at 10:00:00", Stands("a", "waiting", TEN)),
        ("a running at +2h", Stands("a", "running", END + 7200 * SECOND)),
        ("a has at least 3 containers at 10:00", Has("a", ">=", 3, TEN)),
        ("a has at most 1 container at 10:00", Has("a", "<=", 1, TEN)),
        ("a has 2 containers at 10:00", Has("a", "==", 2, TEN)),
        ('"waiting" waiting at 10:00', Stands("waiting", "waiting", TEN)),
        ("utilization above 0.8 at 10:00", Measures("utilization", ">", 0.8, part=False, time=TEN)),
        ("fairness loss below 5% at 10:00", Measures("fairness loss", "<", 0.05, part=True, time=TEN)),
        ("waiting apps at most 2 at 10:00", Measures("waiting apps", "<=", 2, part=False, time=TEN)),
    ],
)
def test_each_form(text: str, meant: Outcome) -> None:
    assert parse(text, END) == meant


def test_combinations_bind_as_usual() -> None:
    a, b, c = (Stands(name, "running", TEN) for name in "abc")
    text = "a running at 10:00 or not b running at 10:00 and c running at 10:00"
    assert parse(text, END) == Any((a, All((Not(b), c))))
    text = "(a running at 10:00 or not b running at 10:00) and c running at 10:00"
    assert parse(text, END) == All((Any((a, Not(b))), c))
    assert atoms(parse(text, END)) == [a, b, c]


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("", 1, "the name of an app"),
        ("digits", 7, "completed"),
        ("digits completed by 10:00", 18, "before or after"),
        ("digits completed before", 24, "a time"),
        ("digits completed before noon", 25, "'noon' is not a time"),
        ("digits completed before 25:00", 25, "'25:00' is not a time"),
        ("digits completed before -5parsecs", 25, "is not a time"),
        ("digits has many containers at 10:00", 12, "a number of containers"),
        ("digits has 3 boxes at 10:00", 14, "containers or container"),
        ("digits running before 10:00", 16, "expected at"),
        ("utilization over 0.8 at 10:00", 13, "above, below"),
        ("utilization above high at 10:00", 19, "a number"),
        ("waiting apps above 10% at 10:00", 20, "no maximum"),
        ("a running at 10:00 b running at 10:00", 20, "and, or, or nothing more"),
        ("(a running at 10:00", 20, "a closing parenthesis"),
        ('a "running at 10:00', 3, "never closed"),
        ("not", 4, "the name of an app"),
    ],
)
def test_an_error_names_the_character(text: str, at: int, expected: str) -> None:
    with pytest.raises(OutcomeError) as error:
        parse(text, END)
    assert f"at character {at}:" in str(error.value), error.value
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


WORDS = [
    "a",
    "not",
    "and",
    "or",
    "(",
    ")",
    '"',
    "completed",
    "before",
    "at",
    "has",
    "at least",
    "3",
    "containers",
    "10:00",
]


@settings(max_examples=tries(4, 1000))
@given(
    st.one_of(
        st.text(max_size=60), st.lists(st.sampled_from([*WORDS, "utilization", "above", "80%", "-1h"])).map(" ".join)
    )
)
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(OutcomeError):
        assert atoms(parse(text, END))


@pytest.mark.parametrize("text", ["(" * 5000, "not " * 900, "not " * 60 + "a running at 10:00"])
def test_depth_and_length_are_bounded(text: str) -> None:
    with pytest.raises(OutcomeError):
        parse(text, END)
