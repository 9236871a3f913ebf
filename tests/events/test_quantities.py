"""Quantities and durations: every unit, every limit, and the errors for other text."""

from __future__ import annotations

import math

import pytest

from events import quantities
from events.quantities import (
    LARGEST,
    LONGEST_S,
    Quantity,
    QuantityError,
    capacity,
    duration,
    humanize,
    resource,
    resources,
    short,
)
from tests.errors import raises


@pytest.mark.parametrize(
    ("name", "quantity", "units"),
    [
        ("cpu", 2, 2000),
        ("cpu", 0.1, 100),
        ("cpu", 0.0001, 1),
        ("cpu", "2", 2000),
        ("cpu", "0.5", 500),
        ("cpu", " 500 m ", 500),
        ("cpu", "0.5m", 1),
        ("cpu", 0, 0),
        ("memory", 1024, 1024),
        ("memory", "512", 512),
        ("memory", "1k", 10**3),
        ("memory", "1MB", 10**6),
        ("memory", "1G", 10**9),
        ("memory", "1TB", 10**12),
        ("memory", "1P", 10**15),
        ("memory", "1KiB", 2**10),
        ("memory", "1Mi", 2**20),
        ("memory", "1GiB", 2**30),
        ("memory", "1Ti", 2**40),
        ("memory", "1PiB", 2**50),
        ("memory", "1.5GiB", 3 * 2**29),
        ("memory", "7B", 7),
        ("gpu", 1.5, 2),
        ("gpu", 1.0000000001, 1),
        ("licences", "3", 3),
        ("licences", LARGEST, LARGEST),
    ],
)
def test_a_quantity_in_base_units(name: str, quantity: Quantity, units: int) -> None:
    assert resource(name, quantity) == units


def test_a_text_is_parsed_once_for_each_resource_unless_it_is_long() -> None:
    assert resource("cpu", "7m") == 7
    with raises(QuantityError, "quantity.unknown_unit"):
        resource("memory", "7m")
    assert resource("cpu", "7m") == 7
    cached = quantities._cached_units.cache_info().currsize
    assert resource("cpu", " " * 100 + "7m") == 7
    assert quantities._cached_units.cache_info().currsize == cached


_NO_QUANTITY: list[tuple[str, object, str]] = [
    ("cpu", -1, "quantity.negative"),
    ("gpu", math.nan, "quantity.negative"),
    ("gpu", math.inf, "quantity.too_large"),
    ("gpu", LARGEST + 1, "quantity.too_large"),
    ("gpu", 10**30, "quantity.too_large"),
    ("gpu", True, "quantity.malformed"),
    ("gpu", None, "quantity.malformed"),
    ("gpu", [], "quantity.malformed"),
    ("memory", "much", "quantity.malformed"),
    ("memory", "1m", "quantity.unknown_unit"),
    ("memory", "1Xi", "quantity.unknown_unit"),
    ("memory", "-1", "quantity.malformed"),
    ("cpu", "1G", "quantity.unknown_unit"),
    ("cpu", "1.", "quantity.malformed"),
]


@pytest.mark.parametrize(("name", "quantity", "code"), _NO_QUANTITY)
def test_invalid_quantities(name: str, quantity: Quantity, code: str) -> None:
    with raises(ValueError, code):
        resource(name, quantity)


def test_resources_are_sorted_and_without_zeros() -> None:
    assert list(resources({"memory": "1k", "gpu": 0, "cpu": 1}).items()) == [("cpu", 1000), ("memory", 1000)]


def test_parsing_of_capacities() -> None:
    assert capacity("memory=8GiB, cpu = 4,gpu=0") == {"cpu": 4000, "memory": 8 * 2**30}


@pytest.mark.parametrize("part", ["cpu", "=4", " =4", "", "c\0=4"])
def test_malformed_capacities_are_refused(part: str) -> None:
    with raises(ValueError, "quantity.malformed", repr(part)):
        capacity(f"{part},memory=1k")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0), ("500ms", 0.5), ("2m", 120.0), ("1.5h", 5400.0), ("2d", 172800.0), ("7", 7.0), (7, 7.0), (0.25, 0.25),
        (0, 0.0), (LONGEST_S, LONGEST_S), ("366d", LONGEST_S),
    ],
)  # fmt: skip
def test_a_duration_in_seconds(text: Quantity, seconds: float) -> None:
    found = duration(text)
    assert found == seconds
    assert isinstance(found, float)


_NO_DURATION: list[tuple[object, str]] = [
    ("soon", "quantity.malformed"),
    ("1w", "quantity.malformed"),
    (True, "quantity.malformed"),
    (None, "quantity.malformed"),
    (-1, "quantity.out_of_range"),
    ("367d", "quantity.out_of_range"),
    (LONGEST_S + 1, "quantity.out_of_range"),
    (math.nan, "quantity.out_of_range"),
]


@pytest.mark.parametrize(("text", "code"), _NO_DURATION)
def test_invalid_durations(text: Quantity, code: str) -> None:
    with raises(ValueError, code):
        duration(text)


@pytest.mark.parametrize(
    ("name", "amount", "words"),
    [
        ("cpu", 1000, "1 core"), ("cpu", 1500, "1.5 cores"), ("cpu", 0, "0 cores"),
        ("memory", 2**40, "1 TiB"), ("memory", 2**40 - 2**30, "1023 GiB"), ("memory", 2**30, "1 GiB"),
        ("memory", 2**20, "1 MiB"),
        ("memory", 1536, "1.5 KiB"), ("memory", 1024, "1 KiB"), ("memory", 1023, "1023 B"), ("gpu", 3, "3 gpu"),
    ],
)  # fmt: skip
def test_amounts_for_people(name: str, amount: int, words: str) -> None:
    assert humanize(name, amount) == words


def test_a_value_in_a_message_is_short() -> None:
    assert short("x" * 58) == repr("x" * 58)
    assert short("x" * 59) == "'" + "x" * 56 + "..."
    assert short(10**30 - 1) == "9" * 30
    assert short(-(10**30)) == short(10**30) == "a huge number"
