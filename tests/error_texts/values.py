"""Errors about quantities, durations and requirements outside of specs."""

# ruff: noqa: E501 - a text stands on one line, so that it can be searched for

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from events.quantities import LARGEST, LONGEST_S, duration, resource
from events.spec.requirements import DEEPEST, LONGEST, requirement

if TYPE_CHECKING:
    from collections.abc import Callable


def quantity(name: str, value: Any) -> Callable[[], object]:
    return lambda: resource(name, value)


def time(value: Any) -> Callable[[], object]:
    return lambda: duration(value)


ROWS: list[tuple[str, Callable[[], object], str]] = [
    # quantities and durations
    ("quantity.negative", quantity("cpu", -1), "cpu: expected a quantity of at least 0, got -1"),
    ("quantity.too_large", quantity("gpu", math.inf), "gpu: inf is more than any cluster has"),
    (
        "quantity.too_large",
        quantity("gpu", LARGEST + 1),
        "gpu: 1152921504606846977 is more than any cluster has",
    ),
    ("quantity.too_large", quantity("gpu", 10**30), "gpu: a huge number is more than any cluster has"),
    ("quantity.malformed", quantity("gpu", True), "gpu: True is not a quantity; write a whole number"),
    ("quantity.malformed", quantity("gpu", None), "gpu: None is not a quantity; write a whole number"),
    ("quantity.malformed", quantity("gpu", []), "gpu: [] is not a quantity; write a whole number"),
    (
        "quantity.malformed",
        quantity("memory", "much"),
        "memory: 'much' is not a quantity; write 512MiB or 2GiB",
    ),
    (
        "quantity.unknown_unit",
        quantity("memory", "1m"),
        "memory: '1m' has an unknown unit; write 512MiB or 2GiB",
    ),
    (
        "quantity.unknown_unit",
        quantity("memory", "1Xi"),
        "memory: '1Xi' has an unknown unit; write 512MiB or 2GiB",
    ),
    ("quantity.malformed", quantity("memory", "-1"), "memory: '-1' is not a quantity; write 512MiB or 2GiB"),
    (
        "quantity.unknown_unit",
        quantity("cpu", "1G"),
        "cpu: '1G' is not a number of cores; write 2, 0.5 or 500m",
    ),
    ("quantity.malformed", quantity("cpu", "1."), "cpu: '1.' is not a quantity; write 2, 0.5 or 500m"),
    ("quantity.malformed", time("soon"), "'soon' is not a duration; write 10s, 500ms, 2m or 1h"),
    ("quantity.malformed", time("1w"), "'1w' is not a duration; write 10s, 500ms, 2m or 1h"),
    ("quantity.malformed", time(True), "True is not a duration; write 10s, 500ms, 2m or 1h"),
    ("quantity.malformed", time(None), "None is not a duration; write 10s, 500ms, 2m or 1h"),
    ("quantity.out_of_range", time("367d"), "'367d' is not a duration between 0 and a year"),
    ("quantity.out_of_range", time(LONGEST_S + 1), "31622401.0 is not a duration between 0 and a year"),
    ("quantity.out_of_range", time(math.nan), "nan is not a duration between 0 and a year"),
    # requirements
    (
        "requirement.malformed",
        lambda: requirement("gpu_type"),
        'expected "==", "!=", "in" or "not in" at character 9, got the end; to ask whether a node has the label, write has gpu_type',
    ),
    (
        "requirement.malformed",
        lambda: requirement('a = "x"'),
        'expected "==", "!=", "in" or "not in" at character 3, got \'=\'; write ==',
    ),
    (
        "requirement.malformed",
        lambda: requirement("a >= 3"),
        'expected "==", "!=", "in" or "not in" at character 3, got \'>=\'',
    ),
    ("requirement.malformed", lambda: requirement('a not "x"'), 'expected "in" after "not" at character 7, got \'x\''),
    (
        "requirement.malformed",
        lambda: requirement("a == h100"),
        'expected a value in quotes, such as "h100" at character 6, got \'h100\'; write "h100"',
    ),
    (
        "requirement.malformed",
        lambda: requirement("a == 8xl"),
        'expected a value in quotes, such as "h100" at character 6, got \'8xl\'; write "8xl"',
    ),
    (
        "requirement.malformed",
        lambda: requirement("a =="),
        'expected a value in quotes, such as "h100" at character 5, got the end',
    ),
    (
        "requirement.malformed",
        lambda: requirement("a in []"),
        "expected a value in quotes, such as \"h100\" at character 7, got ']'",
    ),
    (
        "requirement.malformed",
        lambda: requirement("a in 'x'"),
        "expected \"[\" and a list of values at character 6, got 'x'",
    ),
    ("requirement.malformed", lambda: requirement("a in ['x' 'y']"), 'expected "," or "]" at character 11, got \'y\''),
    (
        "requirement.malformed",
        lambda: requirement("has a && has b"),
        'expected "and", "or" or the end at character 7, got \'&&\'; write and',
    ),
    (
        "requirement.malformed",
        lambda: requirement("has a OR has b"),
        'expected "and", "or" or the end at character 7, got \'OR\'; write or',
    ),
    ("requirement.malformed", lambda: requirement("(has a"), 'expected "and", "or" or ")" at character 7, got the end'),
    (
        "requirement.malformed",
        lambda: requirement("has a)"),
        'expected "and", "or" or the end at character 6, got \')\'',
    ),
    (
        "requirement.malformed",
        lambda: requirement("has a and"),
        'expected the name of a label, "has", "not" or "(" at character 10, got the end',
    ),
    (
        "requirement.malformed",
        lambda: requirement("has 7"),
        "expected the name of a label after \"has\" at character 5, got '7'",
    ),
    (
        "requirement.malformed",
        lambda: requirement("has in"),
        "expected the name of a label after \"has\" at character 5, got 'in'",
    ),
    (
        "requirement.malformed",
        lambda: requirement("a == 'x"),
        "the text that begins at character 6 has no closing quote",
    ),
    (
        "requirement.malformed",
        lambda: requirement(r"a == 'x\n'"),
        "expected a quote or a backslash after the backslash at character 8, got 'n'",
    ),
    ("requirement.malformed", lambda: requirement("a == 'x\n'"), "the text at character 6 can't hold '\\n'"),
    ("requirement.malformed", lambda: requirement("a == 'x\x85'"), "the text at character 6 can't hold '\\x85'"),
    ("requirement.malformed", lambda: requirement("a == '\ud800'"), "the text at character 6 can't hold '\\ud800'"),
    (
        "requirement.malformed",
        lambda: requirement("\0"),
        'expected the name of a label, "has", "not" or "(" at character 1, got \'\\x00\'',
    ),
    (
        "requirement.too_deep",
        lambda: requirement("(" * (DEEPEST + 1) + "has a"),
        "more than 32 levels of brackets and not, at character 34",
    ),
    (
        "requirement.too_long",
        lambda: requirement("a" * (LONGEST + 1)),
        "1,025 characters are too many; at most 1,024 are taken",
    ),
]
