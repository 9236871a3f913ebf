"""Requirements: the meaning of expressions, and errors for other text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.spec.requirements import (
    DEEPEST,
    LONGEST,
    Comparison,
    Either,
    Every,
    Expression,
    Not,
    Requirement,
    RequirementError,
    is_label,
    requirement,
)
from tests.errors import raises
from tests.tries import tries

H100 = {"gpu_type": "h100", "zone": "a", "disk.io/size-gb": "500"}
NAMES = ("a", "b", "gpu_type", "node.io/zone-1")
VALUES = ("x", "y", "h100", 'say "it\'s"', "back\\slash", "7", "", "é")


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        (" \n", True),
        ('gpu_type == "h100"', True),
        ("gpu_type == 'h100'", True),
        ('gpu_type=="a100"', False),
        ('gpu_type != "h100"', False),
        ('missing == "h100"', False),
        ('missing == ""', False),
        ('missing != "h100"', True),
        ('gpu_type in ["a100", "h100"]', True),
        ('gpu_type not in ["a100", "h100"]', False),
        ('missing in ["a100", ""]', False),
        ('missing not in ["a100"]', True),
        ("has zone", True),
        ("has missing", False),
        ("not has missing", True),
        ("disk.io/size-gb == 500", True),
        ("disk.io/size-gb == 500.0", False),
        ('has zone and gpu_type == "a100" or zone == "a"', True),
        ('has zone and (gpu_type == "a100" or zone == "b")', False),
        ('not zone == "b" and zone == "a"', True),
        ('not (zone == "b" or zone == "a")', False),
        ('zone == "a"and(has zone)', True),
    ],
)
def test_a_requirement_matches_labels(text: str, matches: bool) -> None:
    assert requirement(text).matches(H100) is matches


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  ", ""),
        ("a=='x'", 'a == "x"'),
        ("a in ['x']", 'a == "x"'),
        ("not a in ['x', 7]", 'a not in ["x", "7"]'),
        ("not not has a", "has a"),
        ("((has a) and (has b and has c))", "has a and has b and has c"),
        ("(has a or has b) and has c", "(has a or has b) and has c"),
        ("(has a and has b) or has c", "has a and has b or has c"),
        ("not(has a and has b)", "not (has a and has b)"),
        ("a == 'it\\'s \"so\"'", 'a == "it\'s \\"so\\""'),
    ],
)
def test_the_canonical_form(text: str, canonical: str) -> None:
    assert str(requirement(text)) == canonical
    assert requirement(canonical) == requirement(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "gpu_type",
            "requirement.malformed",
        ),
        ('a = "x"', "requirement.malformed"),
        ("a >= 3", "requirement.malformed"),
        ('a not "x"', "requirement.malformed"),
        ("a == h100", "requirement.malformed"),
        ("a == 8xl", "requirement.malformed"),
        ("a ==", "requirement.malformed"),
        ("a in []", "requirement.malformed"),
        ("a in 'x'", "requirement.malformed"),
        ("a in ['x' 'y']", "requirement.malformed"),
        ("has a && has b", "requirement.malformed"),
        ("has a OR has b", "requirement.malformed"),
        ("(has a", "requirement.malformed"),
        ("has a)", "requirement.malformed"),
        ("has a and", "requirement.malformed"),
        ("has 7", "requirement.malformed"),
        ("has in", "requirement.malformed"),
        ("a == 'x", "requirement.malformed"),
        (r"a == 'x\n'", "requirement.malformed"),
        ("a == 'x\n'", "requirement.malformed"),
        ("a == 'x\x85'", "requirement.malformed"),
        ("a == '\ud800'", "requirement.malformed"),
        ("\0", "requirement.malformed"),
        ("(" * (DEEPEST + 1) + "has a", "requirement.too_deep"),
        ("not " * 250 + "has a", "requirement.too_deep"),
        ("a" * (LONGEST + 1), "requirement.too_long"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_invalid_requirements_are_refused(text: str, code: str) -> None:
    with raises(RequirementError, code):
        requirement(text)


def test_the_deepest_and_the_longest_are_taken() -> None:
    assert requirement("(" * DEEPEST + "has a" + ")" * DEEPEST) == requirement("has a")
    longest = "has a" + " or has a" * ((LONGEST - 5) // 9)
    longest += " " * (LONGEST - len(longest))
    assert requirement(longest).matches({"a": ""})


def test_a_requirement_lists_its_labels() -> None:
    assert requirement("").labels == ()
    assert requirement("has b and (a == 1 or not (b in [1, 2] or has c))").labels == ("a", "b", "c")


def test_valid_label_names() -> None:
    assert [name for name in (*NAMES, "", "7", "a b", "in", "a\n", "ä", "-a") if is_label(name)] == list(NAMES)


# --- for any expression -------------------------------------------------------------------------------------------------


def _written(expression: Expression) -> str:
    """An expression with every bracket and long form that it could have."""
    match expression:
        case Comparison(values=()):
            return f"({'not ' if expression.negated else ''}has {expression.label})"
        case Comparison(label=label, values=values, negated=negated):
            listed = ",".join("'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'" for value in values)
            return f"(not ({label} in [{listed}]))" if negated else f"{label} in [{listed}]"
        case Not(part=part):
            return f"not({_written(part)})"
        case Every(parts=parts):
            return "(" + ")and(".join(map(_written, parts)) + ")"
        case Either(parts=parts):
            return "(" + ")or(".join(map(_written, parts)) + ")"


def _brute(expression: Expression, labels: dict[str, str]) -> bool:
    """The meaning, from the definition of each operator alone."""
    match expression:
        case Comparison(label=label, values=values, negated=negated):
            found = any(name == label and (not values or value in values) for name, value in labels.items())
            return not found if negated else found
        case Not(part=part):
            return not _brute(part, labels)
        case Every(parts=parts):
            return [_brute(part, labels) for part in parts].count(False) == 0
        case Either(parts=parts):
            return [_brute(part, labels) for part in parts].count(True) > 0


comparisons = st.builds(
    Comparison, st.sampled_from(NAMES), st.lists(st.sampled_from(VALUES), max_size=3).map(tuple), st.booleans()
)
expressions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(Every, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Either, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)
node_labels = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES))


def read(expression: Expression) -> Requirement:
    return requirement(_written(expression))


@settings(max_examples=tries(25, 4000), deadline=None)
@given(expressions, node_labels)
def test_it_agrees_with_the_definition(expression: Expression, labels: dict[str, str]) -> None:
    assert read(expression).matches(labels) is _brute(expression, labels)


@settings(max_examples=tries(25, 4000), deadline=None)
@given(expressions)
def test_the_canonical_form_reads_as_the_same(expression: Expression) -> None:
    first = read(expression)
    again = requirement(str(first))
    assert again == first
    assert hash(again) == hash(first)
    assert str(again) == str(first)


@settings(max_examples=tries(13, 2000), deadline=None)
@given(expressions, expressions, node_labels)
def test_de_morgan(left: Expression, right: Expression, labels: dict[str, str]) -> None:
    one, other = _written(left), _written(right)
    for outside, inside in (("and", "or"), ("or", "and")):
        together = requirement(f"not (({one}) {outside} ({other}))")
        apart = requirement(f"not ({one}) {inside} not ({other})")
        assert together.matches(labels) is apart.matches(labels)


@settings(max_examples=tries(13, 2000), deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.sampled_from(VALUES), min_size=1, max_size=3), node_labels)
def test_a_list_equals_its_values_one_by_one(name: str, values: list[str], labels: dict[str, str]) -> None:
    quoted = ['"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values]
    listed, single = f"[{', '.join(quoted)}]", [f"{name} == {value}" for value in quoted]
    within = requirement(f"{name} in {listed}").matches(labels)
    assert within is requirement(" or ".join(single)).matches(labels)
    assert requirement(f"{name} not in {listed}").matches(labels) is not within
    assert not within or requirement(f"has {name}").matches(labels)


PIECES = (
    "a",
    "has ",
    "not ",
    " in ",
    "==",
    "!=",
    "(",
    ")",
    "[",
    "]",
    ",",
    '"x"',
    "'",
    '"',
    "\\",
    " and ",
    " or ",
    "7",
    "\n",
)


@settings(max_examples=tries(63, 10000), deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    complaint = ""
    try:
        found = requirement(text)
    except ValueError as error:
        complaint = str(error)
    if complaint:
        assert len(complaint) < 300
        assert complaint.isprintable()
    else:
        assert requirement(str(found)) == found
        assert found.matches({}) in (True, False)
